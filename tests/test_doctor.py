"""What `dalle-lib doctor` finds, with real peers on 127.0.0.1 and on machines where one thing is broken."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import hivemind
import pandas as pd
import psutil
import pytest
from conftest import living
from hivemind.p2p import P2P
from statuses import peer_status

from dalle_lib.auth import Identity
from dalle_lib.checks import doctor as doctors
from dalle_lib.checks.doctor import doctor
from dalle_lib.cli import Doctor
from dalle_lib.run import RunCard
from dalle_lib.swarm import LocalSwarm, PeerSettings, local_swarm
from dalle_lib.swarm.peer.dry_run import Findings, trial
from dalle_lib.swarm.peer.greeter import Greeter
from dalle_lib.swarm.peer.metrics import MetricsBoard

DEAD = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWRy6EbDgUAKT1z9GKkD5x4G8yaJEsnhmBGPo3L5qGCY32"


def here(**settings) -> PeerSettings:
    return PeerSettings(**{"run": "emoji-mini", "host": "127.0.0.1", **settings})


def probe(settings: PeerSettings, first_peers: list[str], **limits) -> Findings:
    """Return all that the trial finds."""
    found = {}
    for facts in trial(settings, first_peers, **limits):
        found |= facts
    return Findings(**found)


def command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "dalle_lib", "doctor", *arguments], capture_output=True, text=True, timeout=300
    )


def started_with(cache: str) -> set[psutil.Process]:
    """Return the processes that have this Hub cache in their environment."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found |= {process} if process.environ().get("HF_HUB_CACHE") == cache else set()
    return found


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Return a function that makes processes which are started from then on run some code first."""

    def break_it(code: str) -> None:
        (tmp_path / "sitecustomize.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    return break_it


def test_a_machine_that_can_take_part_learns_what_the_first_peer_sees_of_it(mini, swarm_folder, hub):
    with local_swarm(mini, swarm_folder) as swarm:
        before = started_with(os.environ["HF_HUB_CACHE"])
        assert before
        done = command("--json", "--run", swarm.run, "--host", "127.0.0.1", "--initial-peers", DEAD)
        assert done.returncode == 0, done.stderr
        assert not living(list(started_with(os.environ["HF_HUB_CACHE"]) - before)), "the doctor left something running"
        checks = pd.DataFrame.from_dict(json.loads(done.stdout), orient="index")
        assert checks["ok"].all()
        assert checks.loc[["codecs", "p2pd"], "here"].tolist() == ["values survive", "starts"]
        assert checks.loc["first peers", "here"].startswith(f"1 of 2 answer, not {DEAD.split('/')[-1]} (/ip4/127.0.0.1")
        assert "connection refused" in checks.loc["first peers", "here"]
        assert re.fullmatch(r"a first peer can connect to port \d+", checks.loc["reachable", "here"])
        assert checks.loc["clock", "here"] == "+0.0 s from a first peer's, +0.0 s from the Hub's"
        assert re.match(r"[\d.e+]+ Mbit/s to a first peer: [\d.]+ s of each round", checks.loc["upload", "here"])
        assert checks.loc["speed", "figures"]["samples_per_second"][0] > 0
        assert checks.loc["an epoch", "here"].startswith("alone "), "the hash table says that nobody trains"


def test_a_machine_that_cannot_take_part_is_told_what_to_do_and_fails(hub):
    done = command("--initial-peers", DEAD)
    assert done.returncode == 1
    assert "cannot take part in emoji-mini yet: first peers" in done.stderr
    row, remedy = done.stdout[done.stdout.index("FAILED") :].splitlines()[:2]
    assert DEAD.split("/")[-1] in row
    assert "ask the run's organiser for other addresses" in remedy


def test_the_trial_looks_who_trains_in_the_hash_table(mini, swarm_folder, tmp_path):
    identity = Identity.load_or_create(tmp_path / "identity")
    with local_swarm(mini, swarm_folder) as swarm:
        card = RunCard.load(swarm.run)
        board = MetricsBoard(card.key, identity.private_key)
        ada = hivemind.DHT(
            start=True,
            initial_peers=list(card.initial_peers),
            record_validators=board.validators,
            host_maddrs=["/ip4/127.0.0.1/tcp/0"],
            identity_path=str(tmp_path / "identity"),
        )
        try:
            board.post(ada, peer_status(identity.peer_id, "ada", epoch=5, samples_per_s=2.0))
            looks = [probe(here(), list(card.initial_peers), key=card.key)]
            while not looks[-1].others and len(looks) < 10:  # the record is on its way
                looks.append(probe(here(), list(card.initial_peers), key=card.key))
            other = probe(here(), list(card.initial_peers), key="another run")
        finally:
            ada.shutdown()
    assert (looks[-1].look, looks[-1].others, looks[-1].epoch) == (None, [2.0], 5)
    assert (other.look, other.others) == (None, [])


def test_the_trial_tells_what_it_finds_at_once(broken):
    broken(
        "import sys, time, types\n"
        "codec = types.SimpleNamespace(install=lambda: print('a line of a library', flush=True))\n"
        "sys.modules['hivemind'] = types.SimpleNamespace(DHT=lambda **_: time.sleep(3600))\n"
        "sys.modules['dalle_lib.swarm.averaging.codec'] = sys.modules['dalle_lib.swarm.hash_table'] = codec\n"
    )
    with contextlib.closing(trial(here(), [DEAD])) as facts:
        assert next(facts) == {"codecs": None}


def test_a_peer_that_failed_is_checked_with_its_own_settings(tmp_path, monkeypatch, capsys):
    with pytest.raises(ValueError, match=r"with its settings\.json, but that is not in"):
        Doctor(peer=here(), folder=tmp_path).run()
    here(run="emoji", port=31337).save(tmp_path / "settings.json")
    (tmp_path / "peer.log").write_text("its last words")
    checked = []
    monkeypatch.setattr("dalle_lib.checks.doctor.doctor_checks", lambda settings, *_: checked.append(settings) or [])
    Doctor(peer=here(), folder=tmp_path).run()
    assert checked == [here(run="emoji", port=31337)]
    assert "its last words" in capsys.readouterr().out


def test_a_first_peer_without_a_greeter_answers_and_addresses_say_whether_we_are_reachable(hub):
    async def ask() -> pd.DataFrame:
        stock = await P2P.create()
        try:
            first = tuple(map(str, await stock.get_visible_maddrs()))
            return await asyncio.to_thread(doctor, here(initial_peers=first))
        finally:
            await stock.shutdown()

    checks = asyncio.run(ask())
    assert checks["ok"].all()
    assert checks.loc["first peers", "here"] == "1 of 1 answer"
    assert checks.loc["upload", "here"].startswith("not measured (")
    assert "only private addresses" in checks.loc["reachable", "here"]
    assert "--client-mode" in checks.loc["reachable", "remedy"]


def test_a_first_peer_that_measures_another_upload_says_so(hub, monkeypatch):
    monkeypatch.setattr("dalle_lib.swarm.peer.greeter.UPLOAD_S", 600.0)

    async def ask() -> pd.DataFrame:
        first = await P2P.create()
        addresses = await first.get_visible_maddrs()
        other = await P2P.create(initial_peers=addresses)
        try:
            await Greeter(first).serve()
            _, reader, writer = await other.call_binary_stream_handler(first.peer_id, "Greeter.upload")
            with contextlib.closing(writer):
                assert await reader.readline() == b"{}\n", "it measures the other peer's upload"
                return await asyncio.to_thread(doctor, here(initial_peers=tuple(map(str, addresses))))
        finally:
            for p2p in other, first:
                await p2p.shutdown()

    checks = asyncio.run(ask())
    assert checks["ok"].all()
    assert re.fullmatch(
        r"not measured \(\w+: it measures the upload of another peer: try again in a minute\)",
        checks.loc["upload", "here"],
    )


def test_a_broken_codec_fails(broken):
    broken(
        "import hivemind.compression.serialization as module\n"
        "decode = module.deserialize_torch_tensor\n"
        "module.deserialize_torch_tensor = lambda message: 1.5 * decode(message)\n"
    )
    found = probe(here(), [])
    assert "loses 50% of a tensor" in found.codecs
    assert found.p2pd is None


def test_a_taken_port_is_found_even_where_p2pd_would_share_it(mini, swarm_folder, hub):
    with contextlib.closing(LocalSwarm.start(mini, swarm_folder)) as swarm:
        (address,) = RunCard.load(swarm.run).initial_peers
        port = int(address.split("/")[4])
        checks = doctor(here(run=swarm.run, port=port))
    assert not checks.loc["p2pd", "ok"]
    assert f"that uses port {port}" in checks.loc["p2pd", "remedy"]
    assert "first peers" not in checks.index, "they cannot be tried without p2pd"


def test_a_trial_that_hangs_is_ended_with_all_that_it_started(broken):
    broken(  # on a busy machine, loading the real modules would outlast the limit
        "import subprocess, sys, time, types\n"
        "def hang(**settings):\n"
        "    subprocess.Popen(['sleep', '3600.25'])\n"
        "    time.sleep(3600)\n"
        "sys.modules['hivemind'] = types.SimpleNamespace(DHT=hang)\n"
        "installed = types.SimpleNamespace(install=lambda: None)\n"
        "sys.modules['dalle_lib.swarm.averaging.codec'] = sys.modules['dalle_lib.swarm.hash_table'] = installed\n"
    )
    found = probe(here(), [DEAD], timeout_s=15)
    assert found.codecs is None
    assert found.p2pd == "it hung for 15 s"
    assert not living([p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "3600.25"]])


def test_without_hivemind_nothing_is_started(broken, monkeypatch):
    broken("import sys\nsys.modules['hivemind'] = None\n")
    found = probe(here(), [])
    assert found.p2pd == found.codecs
    assert "import of hivemind halted" in found.codecs
    stand_in = SimpleNamespace(util=SimpleNamespace(find_spec=lambda _: None))
    monkeypatch.setattr("dalle_lib.checks.preflight.importlib", stand_in)
    monkeypatch.setattr(doctors, "trial", lambda *_: pytest.fail("it was tried"))
    assert "pip install" in doctor(here()).loc["hivemind", "remedy"]


@pytest.mark.parametrize("default", ["spawn", "forkserver"])
def test_a_peer_forks_whatever_pythons_default_is(tmp_path, default):
    code = (
        f"import multiprocessing, sys; from pathlib import Path; multiprocessing.set_start_method({default!r});"
        "from dalle_lib.swarm.peer import main as roles;"
        "roles.PeerSettings.load = lambda file: roles.PeerSettings(run='emoji');"
        "roles.play = lambda *_: print(multiprocessing.get_start_method(), flush=True); roles.main(Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "fork\n", done.stderr
