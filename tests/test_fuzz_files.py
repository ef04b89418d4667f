"""What a power cut, a full disk or another version left in a peer's folder is read, or told of in a line.

So are addresses, which strangers write.
"""

import json
import os
import tempfile
from functools import cache
from pathlib import Path

import pytest
from auth_peers import AUTHORITY, identity_file
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import REFUSED, answer_of, as_json, mutated, with_a_change
from peer_files import BEGINNING, LEFT, LEFT_OUT, epoch, peer_with, save_progress, seen

from dalle_lib.auth import Authority, Identity
from dalle_lib.cli.status import Status
from dalle_lib.run import RunCard
from dalle_lib.swarm import Peer, PeerSettings
from dalle_lib.swarm.process.addresses import require_addresses
from dalle_lib.swarm.process.events import MAX_TIME, event_in
from dalle_lib.swarm.process.folder import own_id, run_of, saved_epoch
from dalle_lib.swarm.process.history import counted_rounds, epochs_of
from dalle_lib.swarm.process.standing import Standing
from dalle_lib.swarm.process.status import SwarmStatus

CARD = RunCard.load("emoji-mini")
_TEMPORARY = tempfile.TemporaryDirectory()
FOLDER = Path(_TEMPORARY.name)
EVENTS = [*BEGINNING, *epoch(10), *epoch(11), LEFT_OUT, LEFT]
TOLD_OF = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What whoever shows peers takes for a broken file of one of them."""


@cache
def real(name: str) -> bytes:
    """Return a file of a peer's folder as it should be."""
    folder = FOLDER / "real"
    if not folder.exists():
        save_progress(folder, CARD, epoch=11)
        peer_with(folder, EVENTS, CARD)
        seen(folder, 100, at_epoch=11)
    return (folder / name).read_bytes()


def ada_with(name: str, data: bytes) -> Path:
    """Return the folder of a peer one of whose files holds these bytes."""
    folder = FOLDER / "peers" / "ada"
    folder.mkdir(parents=True, exist_ok=True)
    for each in "settings.json", "bound_to.json", "status.json", "events.jsonl":
        (folder / each).write_bytes(real(each))
    (folder / name).write_bytes(data)
    return folder


def shown(capsys: pytest.CaptureFixture, folder: Path) -> str:
    """Return what `dalle-lib status` shows of a peer."""
    Status(folder=folder.parent).run()
    Status(folder=folder.parent, json=True).run()
    table, _, document = capsys.readouterr().out.partition("\n[\n")
    assert json.loads(f"[{document}")
    assert all(line.isprintable() for line in table.splitlines())
    return table


JSON_FILES = ("settings.json", "bound_to.json", "status.json")
files = st.sampled_from(JSON_FILES).flatmap(
    lambda name: st.tuples(st.just(name), mutated(real(name)) | with_a_change(json.loads(real(name))).map(as_json))
)
several = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@several
@given(files)
def test_the_files_of_a_peers_folder(capsys, file):
    folder = ada_with(*file)
    answer_of(PeerSettings.load, folder / "settings.json")
    answer_of(run_of, folder)
    answer_of(SwarmStatus.read, folder)
    shown(capsys, folder)


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """Draw a file of events of which a few are changed, or a few bytes."""
    if draw(st.booleans()):
        return draw(mutated(real("events.jsonl")))
    told = [json.loads(line) for line in real("events.jsonl").splitlines()]
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(told) - 1))
        told[place] = draw(with_a_change(told[place]))
    return b"".join(as_json(event) + b"\n" for event in told)


@pytest.mark.parametrize("name", ["\x1b[2J", "\ud800", "a\nb", "\u202e"])
def test_the_name_of_a_run_moves_no_cursor(capsys, name):
    bound = json.loads(real("bound_to.json")) | {"name": name}
    assert "ada in " in shown(capsys, ada_with("bound_to.json", as_json(bound)))
    folder = ada_with("settings.json", as_json(json.loads(real("settings.json")) | {"run": name}))
    (folder / "bound_to.json").unlink()
    assert "ada in " in shown(capsys, folder)


@several
@given(events())
def test_the_events_of_a_peer(capsys, data):
    folder = ada_with("events.jsonl", data)
    for line in data.split(b"\n"):
        event = event_in(line)
        assert event is None or (isinstance(event["event"], str) and 0 <= event["time"] <= MAX_TIME)
    peer = Peer(folder)
    for look in Standing.of, Standing.after_epochs, epochs_of, lambda each: counted_rounds(each, [each]):
        try:
            look(peer)
        except TOLD_OF:
            continue
    shown(capsys, folder)


@given(mutated(real("optimizer.safetensors")))
def test_the_progress_of_a_peer(data):
    folder = FOLDER / "progress"
    folder.mkdir(exist_ok=True)
    (folder / "optimizer.safetensors").write_bytes(data)
    found = answer_of(saved_epoch, folder)
    assert found is REFUSED or isinstance(found, int)


@cache
def key_files() -> tuple[bytes, bytes]:
    file = FOLDER / "authority"
    AUTHORITY.save(file)
    Identity.load_or_create(identity_file("fuzzed"))
    return file.read_bytes(), identity_file("fuzzed").read_bytes()


@given(mutated(*key_files()))
def test_files_of_keys(data):
    folder = FOLDER / "keys"
    folder.mkdir(exist_ok=True)
    file = folder / "identity.key"
    file.write_bytes(data)
    os.chmod(file, 0o600)
    found = answer_of(Identity.load_or_create, file)
    if found is not REFUSED:
        assert own_id(folder) == found.peer_id
    answer_of(own_id, folder)
    answer_of(Authority.load, file)


ADDRESS = b"/ip4/93.184.216.34/tcp/31337/p2p/QmcgpsyWgH8Y8ajJz1Cu72KnS5uo2Aa2LpzU7kinSupNKC"


@given(mutated(ADDRESS, ADDRESS.replace(b"ip4/93.184.216.34", b"dns/a.example")).map(lambda a: a.decode("latin-1")))
def test_addresses(address):
    answer_of(require_addresses, [address])
