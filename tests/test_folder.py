"""A peer's folder belongs to one run: what is saved there is neither replaced nor lost."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.proto import crypto_pb2
from peer_files import save_progress, seen

from dalle_lib.auth import Identity
from dalle_lib.run import RunCard
from dalle_lib.swarm import PeerSettings, join, join_run
from dalle_lib.swarm.process.events import read_events
from dalle_lib.swarm.process.folder import (
    BOUND,
    IDENTITY,
    OPTIMIZER,
    bind,
    crew_folder,
    own_id,
    require_own,
    run_of,
    saved_epoch,
)
from dalle_lib.swarm.process.status import SwarmStatus


def longer(card: RunCard) -> RunCard:
    """Return a card of the same name whose run has one epoch more."""
    epochs = card.optimizer.total_epochs + 1
    return card.with_changes(optimizer={**card.optimizer.model_dump(), "total_epochs": epochs})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("start", [join, lambda settings, folder: join_run(settings, folder.parent)])
@pytest.mark.parametrize("is_old", [False, True], ids=["", "of an earlier version"])
def test_the_folder_of_another_run_is_refused_and_not_touched(mini, swarm_folder, start, is_old):
    folder = swarm_folder / "volunteer"
    save_progress(folder, mini, epoch=31)
    if not is_old:
        bind(folder, mini)
    before = contents(swarm_folder)
    with pytest.raises(ValueError, match=r"belongs to run 'emoji-mini' and holds progress up to epoch 31") as refused:
        start(PeerSettings(run="emoji", host="127.0.0.1", device="cpu"), folder)
    assert "choose another name" in str(refused.value)
    assert str(folder) in str(refused.value)
    assert contents(swarm_folder) == before


def test_the_command_that_is_named_lets_a_member_go_on_in_a_changed_run(mini, tmp_path):
    folder = tmp_path / "a run" / "ada"
    save_progress(folder, mini, epoch=31)
    bind(folder, mini)
    for name in "identity.key", "access.token":
        (folder / name).write_text(name)
    before = contents(folder)
    with pytest.raises(ValueError, match="with other settings in its card") as refused:
        require_own(folder, longer(mini))
    command = str(refused.value).split("keep who your peer is: ")[1]
    subprocess.run(["bash", "-c", command], check=True, timeout=60)
    require_own(folder, longer(mini))
    assert contents(folder) == {name: name.encode() for name in ("identity.key", "access.token")}
    assert contents(folder.with_name("ada-old1")) == before


def test_no_peer_is_started_where_its_folder_belongs_to_another_run(mini, swarm_folder):
    save_progress(swarm_folder / "ada", mini, epoch=7)
    before = contents(swarm_folder)
    with pytest.raises(ValueError, match="ada belongs to run 'emoji-mini'"):
        join_run(PeerSettings(run="emoji", name="ada", host="127.0.0.1", alone=True), swarm_folder)
    assert contents(swarm_folder) == before


def test_a_peer_that_is_started_without_join_refuses_it_too(mini, swarm_folder):
    save_progress(swarm_folder, mini, epoch=5)
    bind(swarm_folder, mini)
    PeerSettings(run="emoji", host="127.0.0.1").save(swarm_folder / "settings.json")
    saved = (swarm_folder / OPTIMIZER).read_bytes()
    seen(swarm_folder, 48, at_epoch=5)
    command = [sys.executable, "-m", "dalle_lib.swarm.process.supervisor", str(swarm_folder)]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=120).returncode == 1
    failed = next(event for event in read_events(swarm_folder) if event["event"] == "failed")
    assert "belongs to run 'emoji-mini' and holds progress up to epoch 5 of 60" in failed["error"]
    assert (swarm_folder / OPTIMIZER).read_bytes() == saved
    assert SwarmStatus.read(swarm_folder) is None, "what the start before saw is shown as what this one sees"


def test_a_card_with_other_settings_is_another_run_and_one_with_other_addresses_is_not(mini, tmp_path):
    bind(tmp_path, mini)
    require_own(tmp_path, mini.with_changes(initial_peers=("/ip4/127.0.0.1/tcp/1",), checkpoint=None))
    with pytest.raises(ValueError, match="a run 'emoji-mini' with other settings in its card and holds no progress"):
        bind(tmp_path, longer(mini))
    with pytest.raises(ValueError, match="belongs to run 'emoji-mini'"):
        bind(tmp_path, mini.with_changes(name="other"))
    assert run_of(tmp_path).fingerprint == mini.fingerprint


def test_each_run_has_a_folder_called_after_it(mini, tmp_path, hub):
    hub.add("owner/run", {"run.json": mini.model_dump_json().encode()})
    saved = mini.with_changes(name="my_run").save(tmp_path / "some" / "where")
    for run, called in ("emoji-mini", "emoji-mini"), ("owner/run", "owner--run"), (str(saved), "my_run"):
        assert crew_folder(tmp_path / "peers", RunCard.load(run), "ada") == tmp_path / "peers" / called


def test_progress_of_the_same_run_where_earlier_versions_kept_it_is_found(mini, tmp_path):
    save_progress(tmp_path / "ada", mini, epoch=12)
    assert crew_folder(tmp_path, mini, "ada") == tmp_path
    assert saved_epoch(tmp_path / "ada") == 12
    assert crew_folder(tmp_path, mini, "bob") == tmp_path / "emoji-mini"
    assert crew_folder(tmp_path, RunCard.load("emoji"), "ada") == tmp_path / "emoji"
    bind(tmp_path / "ada", mini)
    assert crew_folder(tmp_path, mini, "ada") == tmp_path
    shutil.rmtree(tmp_path / "ada")
    assert crew_folder(tmp_path, mini, "ada") == tmp_path / "emoji-mini"


def test_a_folder_with_nothing_saved_belongs_to_who_comes_first(mini, tmp_path):
    assert run_of(tmp_path) is None
    assert saved_epoch(tmp_path) is None
    bind(tmp_path, mini)
    assert (tmp_path / BOUND).exists()
    assert run_of(tmp_path).total_epochs == mini.optimizer.total_epochs


def test_a_folder_tells_whose_it_is_as_its_identity_does(tmp_path):
    assert own_id(tmp_path) is None
    for size in 2048, 4096:
        key = rsa.generate_private_key(public_exponent=65537, key_size=size)
        formats = serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL
        data = key.private_bytes(*formats, serialization.NoEncryption())
        message = crypto_pb2.PrivateKey(key_type=crypto_pb2.RSA, data=data)
        (tmp_path / IDENTITY).write_bytes(message.SerializeToString())
        assert own_id(tmp_path) == Identity.load_or_create(tmp_path / IDENTITY).peer_id
    for broken in b"", b"\x08\x00\x12\xff", b"no identity at all":
        (tmp_path / IDENTITY).write_bytes(broken)
        assert own_id(tmp_path) is None
