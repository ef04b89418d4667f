"""What `dalle-lib doctor` finds, with real peers on 127.0.0.1 and on machines where one thing is broken."""

import asyncio
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import time
from datetime import timedelta
from email.utils import formatdate
from types import SimpleNamespace

import pandas as pd
import psutil
import pytest
from conftest import StandInHub, living
from hivemind.p2p import P2P
from hivemind.utils import MAX_DHT_TIME_DISCREPANCY_SECONDS
from one_hot import give_token

from dalle_lib.auth import Authority, Identity
from dalle_lib.checks import doctor as doctors
from dalle_lib.checks.doctor import doctor
from dalle_lib.checks.preflight import in_words, preflight, table
from dalle_lib.cli import Doctor
from dalle_lib.run import RunCard
from dalle_lib.swarm import LocalSwarm, PeerSettings, local_swarm
from dalle_lib.swarm.peer.dry_run import Findings, probe, trial
from dalle_lib.swarm.peer.greeter import Greeter
from dalle_lib.swarm.peer.membership import IDENTITY

DEAD = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWRy6EbDgUAKT1z9GKkD5x4G8yaJEsnhmBGPo3L5qGCY32"


def here(**settings) -> PeerSettings:
    return PeerSettings(**{"run": "emoji-mini", "host": "127.0.0.1", **settings})


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


def test_a_machine_that_cannot_take_part_is_told_what_to_do_and_fails(hub):
    done = command("--initial-peers", DEAD)
    assert done.returncode == 1
    assert "cannot take part in emoji-mini yet: first peers" in done.stderr
    row, remedy = done.stdout[done.stdout.index("FAILED") :].splitlines()[:2]
    assert DEAD.split("/")[-1] in row
    assert "ask the run's organiser for other addresses" in remedy


def test_each_check_is_told_when_it_is_done(hub, monkeypatch):
    """A first peer that does not answer for minutes hides nothing that is known before."""
    monkeypatch.setattr(doctors, "trial", lambda *_: iter([{"codecs": None}, {"p2pd": None}, {"first_peers": {}}]))
    checks = doctors.doctor_checks(here(), ".", None)
    assert next(checks).what == "system"
    monkeypatch.setattr("dalle_lib.checks.preflight.gpus", lambda: pytest.fail("it is not this one's turn"))
    told = list(itertools.takewhile(lambda check: check.what != "CLIP", checks))
    assert told[-1].what == "free disk"
    monkeypatch.setattr("dalle_lib.checks.preflight.gpus", list)
    assert [check.what for check in checks] == [
        "GPU", "codecs", "p2pd", "first peers", "reachable", "upload", "clock",
    ]  # fmt: skip


def test_the_trial_tells_what_it_finds_at_once(broken):
    broken(
        "import sys, time, types\n"
        "codec = types.SimpleNamespace(install=lambda: print('a line of a library', flush=True))\n"
        "sys.modules['hivemind'] = types.SimpleNamespace(DHT=lambda **_: time.sleep(3600))\n"
        "sys.modules['dalle_lib.swarm.averaging.codec'] = codec\n"
    )
    with contextlib.closing(trial(here(), [DEAD])) as facts:
        assert next(facts) == {"codecs": None}


def test_a_run_without_addresses_fails_unless_the_peer_is_to_be_the_first():
    assert not doctors._first_peers({}, here(run="owner/name")).ok
    assert "--alone" in doctors._first_peers({}, here(run="owner/name")).remedy
    assert doctors._first_peers({}, here(run="owner/name", alone=True)).ok
    assert doctors._first_peers({}, here(run="owner/name", role="bootstrap")).ok


def test_in_a_run_with_members_the_access_token_is_checked(mini, tmp_path, hub, monkeypatch):
    monkeypatch.setattr(doctors, "trial", lambda *_: iter([{"codecs": "-", "p2pd": "-", "first_peers": {}}]))
    authority, peer = Authority.generate(), tmp_path / "peers" / "emoji-mini" / "volunteer"
    card = mini.with_changes(members={"authority": authority.public_key})
    run = str(card.save(tmp_path / "run"))

    def check():
        return doctor(here(run=run), tmp_path / "peers").loc["access token"]

    assert not check()["ok"]
    assert "it makes the peer's id" in check()["remedy"]
    identity = Identity.load_or_create(peer / IDENTITY)
    assert f"for one that names peer {identity.peer_id}" in check()["remedy"]
    give_token(authority, card, peer, "ada", valid_for=timedelta(seconds=-60))
    assert not check()["ok"]
    assert "'ada' expired 0:01:" in check()["remedy"]
    give_token(authority, card, peer, "ada")
    assert check()["ok"]
    assert check()["here"].startswith("ada's, until 20")
    assert "access token" not in doctor(here(), peer).index, "this run has no members"


def test_a_clip_that_is_not_there_is_noted_and_hinders_nobody(mini, tmp_path, hub, monkeypatch):
    def note(clip: str) -> str:
        card = mini.with_changes(clip=clip).save(tmp_path / "run")
        row = preflight(str(card)).loc["CLIP"]
        assert row["ok"]
        return row["remedy"]

    monkeypatch.setattr(mini.__class__, "_folders", lambda _: [])  # the CLIP is not copied
    assert note("clip") == "training needs none; to draw, tell the organiser"
    assert note("owner/clip") == "training needs none; to draw, tell the organiser"
    hub.files = {"owner/clip/config.json": b"{}"}
    assert not note("owner/clip")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:1/{repo_id}")
    assert "on the Hub cannot be reached" in note("owner/other")


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


@pytest.mark.parametrize(("shift", "said"), [(60.0, "-"), (-60.0, "+")])
def test_a_clock_that_is_off_fails_and_so_would_hivemind(hub, monkeypatch, shift, said):
    monkeypatch.setattr(StandInHub, "date_time_string", lambda *_: formatdate(time.time() + shift, usegmt=True))
    row = doctor(here()).loc["clock"]
    assert not row["ok"]
    assert re.fullmatch(rf"\{said}(5[89]|60)\.\d s from the Hub's", row["here"])
    assert "timedatectl" in row["remedy"]
    assert doctors.MAX_SECONDS_OFF == MAX_DHT_TIME_DISCREPANCY_SECONDS


def test_the_first_peers_clock_counts_and_the_hubs_says_whose_is_wrong():
    assert doctors._clock(0.0, 60.0).ok, "the first peers would let it in"
    assert "organiser" in doctors._clock(60.0, 0.0).remedy
    assert "timedatectl" in doctors._clock(60.0, 60.0).remedy
    assert doctors._clock(None, None).ok


def test_without_a_network_the_clock_is_not_checked(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    assert doctors.seconds_ahead_of_hub() is None


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
        "sys.modules['dalle_lib.swarm.averaging.codec'] = types.SimpleNamespace(install=lambda: None)\n"
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


def test_the_upload_is_compared_with_the_runs_time_limit(mini):
    def check(mbps: float, **settings):
        answering = Findings(codecs=None, p2pd=None, first_peers={"peer": None}, upload=None, mbps=mbps)
        return doctors._upload(answering, here(**settings), mini)

    sent = doctors.estimate("dalle-emoji").sent
    enough = 8e-6 * sent / mini.averaging.timeout_s
    assert check(1.01 * enough) == check(1.01 * enough)
    for mbps, ok, has_remedy in ((1.01, True, False), (0.99, True, True), (0.51, True, True), (0.49, False, True)):
        found = check(mbps * enough)
        assert (found.ok, bool(found.remedy)) == (ok, has_remedy), found
    assert not check(0.51 * enough, client_mode=True).remedy


def test_a_machine_that_cannot_be_reached_is_told_how_to_join(mini):
    def check(reached: int | None, *addresses: str, **settings):
        answering = Findings(
            codecs=None, p2pd=None, first_peers={"peer": None}, addresses=addresses, greeting="?", reached=reached
        )
        return doctors._reachable(answering, here(**settings))

    assert "--client-mode" in check(0).remedy
    assert not check(31337).remedy
    assert not check(0, client_mode=True).remedy
    assert (
        "--client-mode" in check(None, "/ip4/127.0.0.1/tcp/1", "/ip4/192.168.7.5/tcp/1", "/ip4/100.64.0.1/tcp/1").remedy
    )
    assert not check(None, "/ip4/192.168.7.5/tcp/1", "/ip6/2a00:1450:4001::1/tcp/1").remedy
    assert all(check(reached).ok for reached in (0, 1, None))


def test_each_row_of_words_has_its_mark_and_its_remedy(monkeypatch):
    monkeypatch.setattr("dalle_lib.checks.preflight.free_memory", lambda: 10**9)
    checks = preflight()
    words = in_words(checks)
    assert words.count("FAILED") == 1
    assert re.search(r"FAILED  free memory +1\.0 GB; needed: 3\.0 GB\n +→ close other notebooks", words)
    assert len(words.splitlines()) == len(checks) + (checks["remedy"] != "").sum()
    assert in_words(table([doctors.Check("GPU", "not needed", "broken", True, "mend it")])).startswith("note    GPU")


@pytest.mark.parametrize(
    ("module", "stand_in", "row", "remedy"),
    [
        ("sys", SimpleNamespace(version_info=(3, 10, 4), platform="linux"), "Python", "environment with Python >=3.11"),
        ("multiprocessing", SimpleNamespace(get_all_start_methods=lambda: ["spawn"]), "start method", "WSL2"),
        ("platform", SimpleNamespace(system=lambda: "Windows", python_version=lambda: "3.12.0"), "system", "WSL2"),
    ],
)
def test_a_machine_that_cannot_run_peers_is_told_what_can(monkeypatch, module, stand_in, row, remedy):
    monkeypatch.setattr(f"dalle_lib.checks.preflight.{module}", stand_in)
    check = preflight().loc[row]
    assert not check["ok"]
    assert remedy in check["remedy"]


def test_a_gpu_that_torch_does_not_see_is_mentioned(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    check = preflight().loc["GPU"]
    assert check["ok"]
    assert "install the torch that fits this machine" in check["remedy"]


@pytest.mark.parametrize("default", ["spawn", "forkserver"])
def test_a_peer_forks_whatever_pythons_default_is(tmp_path, default):
    code = (
        f"import multiprocessing, sys; from pathlib import Path; multiprocessing.set_start_method({default!r});"
        "from dalle_lib.swarm.peer import main as roles;"
        "roles.PeerSettings = type('Any', (), {'load': lambda file: None});"
        "roles.play = lambda *_: print(multiprocessing.get_start_method(), flush=True); roles.main(Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "fork\n", done.stderr
