"""What the doctor says of each thing it checks, without any peer: its rows, their order and their remedies."""

import itertools
import re
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from hivemind.utils import MAX_DHT_TIME_DISCREPANCY_SECONDS
from one_hot import give_token

from dalle_lib.auth import Authority, Identity
from dalle_lib.auth.proof_time import note_proof
from dalle_lib.checks import doctor as doctors
from dalle_lib.checks.doctor import doctor
from dalle_lib.checks.preflight import in_words, preflight, preflight_checks
from dalle_lib.planning import Work
from dalle_lib.run.kit import Kit
from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.peer.dry_run import Findings
from dalle_lib.swarm.peer.membership import IDENTITY
from dalle_lib.swarm.peer.traffic import needed_mbps
from dalle_lib.troubles import trouble_in


def here(**settings) -> PeerSettings:
    return PeerSettings(**{"run": "emoji-mini", "host": "127.0.0.1", **settings})


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Measure the speed by a single step."""
    monkeypatch.setattr("dalle_lib.checks.speed.MEASURE_S", 0.0)


def test_each_check_is_told_when_it_is_done(hub, monkeypatch):
    """A first peer that does not answer for minutes hides nothing that is known before."""
    monkeypatch.setattr(
        doctors, "trial", lambda *_, **__: iter([{"codecs": None}, {"p2pd": None}, {"first_peers": {}}])
    )
    checks = doctors.doctor_checks(here(), ".", None)
    assert next(checks).what == "system"
    monkeypatch.setattr("dalle_lib.checks.preflight.gpus", lambda: pytest.fail("it is not this one's turn"))
    told = list(itertools.takewhile(lambda check: check.what != "CLIP", checks))
    assert told[-1].what == "free disk"
    monkeypatch.setattr("dalle_lib.checks.preflight.gpus", list)
    assert [check.what for check in checks] == [
        "GPU", "codecs", "p2pd", "first peers", "reachable", "upload", "clock", "speed", "an epoch", "milestones",
        "traffic",
    ]  # fmt: skip


def test_a_run_without_addresses_fails_unless_the_peer_is_to_be_the_first():
    assert not doctors._first_peers({}, here(run="owner/name")).ok
    assert "--alone" in doctors._first_peers({}, here(run="owner/name")).remedy
    assert doctors._first_peers({}, here(run="owner/name"), is_read=False).ok, "a wrong name is one failure, not two"
    assert doctors._first_peers({}, here(run="owner/name", alone=True)).ok
    assert doctors._first_peers({}, here(run="owner/name", role="bootstrap")).ok


def test_first_peers_that_do_not_answer_keep_only_those_away_who_begin_nothing(mini, hub, tmp_path, monkeypatch):
    silent = {"12D3": "connection refused"}
    assert not doctors._first_peers(silent, here()).ok
    for begins in here(alone=True), here(role="bootstrap"):
        row = doctors._first_peers(silent, begins)
        assert (row.ok, row.here) == (True, "0 of 1 answer, not 12D3 (connection refused)")
        assert "would begin the swarm" in row.remedy
    tried = []
    monkeypatch.setattr(doctors, "trial", lambda _, first_peers, **__: tried.append(first_peers) or iter([]))
    monkeypatch.setattr(doctors, "Findings", lambda: Findings(codecs=None, p2pd="-", first_peers={}))
    identity = Identity.load_or_create(tmp_path / "emoji-mini" / "volunteer" / IDENTITY)
    own, other = (f"/ip4/127.0.0.1/tcp/1/p2p/{peer}" for peer in (identity.peer_id, "12D3"))
    doctor(here(initial_peers=(own, other)), tmp_path)
    assert tried == [[other]], "the peer's own address tells nothing"


def test_in_a_run_with_members_the_access_token_is_checked(mini, tmp_path, hub, monkeypatch):
    monkeypatch.setattr(doctors, "trial", lambda *_, **__: iter([{"codecs": "-", "p2pd": "-", "first_peers": {}}]))
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
    card.with_changes(members={**card.members.model_dump(), "server": "https://club.example"}).save(tmp_path / "run")
    note_proof(peer, time.time() + 86_400)
    assert check()["here"].startswith("ada's has ended; the next start gets another, until 20")
    note_proof(peer, time.time() - 1)
    assert not check()["ok"]
    give_token(authority, card, peer, "ada")
    assert check()["ok"]
    assert check()["here"].startswith("ada's, until 20")
    assert "access token" not in doctor(here(), peer).index, "this run has no members"


def test_a_clip_that_is_not_there_is_noted_and_hinders_nobody(mini, tmp_path, hub, monkeypatch):
    def note(clip: str, revision: str = "0" * 40) -> str:
        card = mini.with_changes(clip=clip, pins={clip: revision}).save(tmp_path / "run")
        row = preflight(str(card)).loc["CLIP"]
        assert row["ok"]
        return row["remedy"]

    monkeypatch.setattr(mini.__class__, "_folders", lambda _: [])  # the CLIP is not copied
    assert note("clip") == "training needs none; to draw, tell the organiser"
    assert note("owner/clip") == "training needs none; to draw, tell the organiser"
    assert not note("owner/clip", revision=hub.add("owner/clip", {"config.json": b"{}"}))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:1/{repo_id}")
    assert "on the Hub cannot be reached" in note("owner/other")


@pytest.mark.parametrize(("shift", "said"), [(60.0, "-"), (-60.0, "+")])
def test_a_clock_that_is_off_fails_and_so_would_hivemind(hub, shift, said):
    hub.clock_shift_s = shift
    row = doctor(here()).loc["clock"]
    assert not row["ok"]
    assert re.fullmatch(rf"\{said}(5\d|60)\.\d s from the Hub's", row["here"])
    assert "timedatectl" in row["remedy"]
    assert doctors.MAX_SECONDS_OFF == MAX_DHT_TIME_DISCREPANCY_SECONDS


def test_the_first_peers_clock_counts_and_the_hubs_says_whose_is_wrong():
    assert doctors.clock_row(0.0, 60.0).ok, "the first peers would let it in"
    assert "organiser" in doctors.clock_row(60.0, 0.0).remedy
    assert "timedatectl" in doctors.clock_row(60.0, 60.0).remedy
    assert doctors.clock_row(None, None).ok


def test_without_a_network_the_clock_is_not_checked(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    assert doctors.seconds_ahead_of_hub() is None


def test_the_upload_is_compared_with_the_runs_time_limit(mini):
    def check(mbps: float, card=mini, **settings):
        answering = Findings(codecs=None, p2pd=None, first_peers={"peer": None}, upload=None, mbps=mbps)
        return doctors._upload(answering, here(**settings), card)

    work = Work.of(mini)
    enough = 8e-6 * (work.up_bytes + work.answer_bytes) / (mini.averaging.timeout_s / 2)
    for mbps, ok, has_remedy in (
        (1.01, True, False), (0.99, True, True), (0.51, True, True), (0.49, False, True), (0.0, False, True)
    ):  # fmt: skip
        found = check(mbps * enough)
        assert (found.ok, bool(found.remedy)) == (ok, has_remedy), found
    assert not check(0.51 * enough, client_mode=True).remedy
    four = mini.with_changes(averaging=mini.averaging.model_copy(update={"upload_bits": 4}))
    least = needed_mbps(four)  # for parameters, which travel in 8 bits
    assert not check(0.99 * least, four, client_mode=True).ok
    assert check(1.01 * least, four).remedy == "join with --client-mode, which sends no averages"
    assert check(1.01 * least, four, client_mode=True).here.endswith(" MB of parameters")


def test_a_machine_that_cannot_be_reached_is_told_how_to_join(mini):
    def check(reached: int | None, *addresses: str, **settings):
        answering = Findings(
            codecs=None, p2pd=None, first_peers={"peer": None}, addresses=addresses, greeting=None, reached=reached
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
    assert check(None).here.endswith("(it is connected through a relay, which hides where it is)")


def test_a_first_peer_that_trains_is_told_apart_from_one_that_cannot_reach_this_machine(mini):
    refusal = "QmAda: failed to negotiate protocol: protocols not supported: [Greeter.rpc_dial_back]"
    found = Findings(codecs=None, p2pd=None, first_peers={"peer": None}, greeting=refusal, upload=refusal)
    for check in doctors._reachable(found, here()), doctors._upload(found, here(), mini):
        assert "(this first peer trains: only a bootstrap peer tries it)" in check.here


def test_the_kit_is_that_of_a_first_peer_only_where_one_tells_the_same(mini):
    own = Kit.own(mini)
    other = replace(own, fingerprint="0" * 16, protocol=own.protocol + 1)
    for kits, known in (
        ([own, other], "as a first peer has it"), ([other, None], "no first peer tells that it has it"),
        ([None], "no first peer tells that it has it"), ([], "no first peer tells that it has it"),
    ):  # fmt: skip
        found = doctors._kit(mini, kits)
        assert (found.ok, found.here) == (True, f"{own}, {known}")
    assert not doctors._kit(mini, [other]).ok


def test_each_row_of_words_has_its_mark_and_its_remedy(monkeypatch):
    monkeypatch.setattr("dalle_lib.checks.preflight.free_memory", lambda: 10**9)
    checks = list(preflight_checks(PeerSettings(run="emoji-mini"), ".", None))
    words = "\n".join(map(in_words, checks))
    assert words.count("FAILED") == 1
    assert re.search(r"FAILED  free memory +1\.0 GB; needed: 3\.0 GB\n +→ close other notebooks", words)
    assert "docs/troubleshooting.md#not-enough-room" in words
    assert len(words.splitlines()) == len(checks) + 1 + sum(check.remedy != "" for check in checks)
    assert in_words(doctors.Check("GPU", "not needed", "broken", True, "mend it")).startswith("note    GPU")


@pytest.mark.parametrize(
    ("settings", "free", "ok", "told"),
    [
        ({"device": "cpu,cpu,cpu"}, 6.9, True, "6.9 GB, but 7.0 GB are needed for all 3 devices"),
        ({"device": "cpu,cpu,cpu"}, 7.1, True, "7.1 GB"),
        ({"device": "cpu,cpu"}, 2.9, False, "2.9 GB"),
        ({"device": "cpu"}, 3.1, True, "3.1 GB"),
        ({}, 3.1, True, "3.1 GB, but 5.0 GB are needed for all 2 devices"),
        ({"device": "first"}, 3.1, True, "3.1 GB"),
        ({"role": "observer"}, 3.1, True, "3.1 GB"),
    ],
)
def test_memory_for_workers_on_further_devices_counts(monkeypatch, settings, free, ok, told):
    monkeypatch.setattr("dalle_lib.checks.preflight.working_gpus", lambda: ["cuda:0", "cuda:1"])
    monkeypatch.setattr("dalle_lib.checks.preflight.free_memory", lambda: int(free * 1e9))
    (check,) = [each for each in preflight_checks(here(**settings), ".", None) if each.what == "free memory"]
    assert (check.ok, check.here) == (ok, told)
    assert ("--device first" in check.remedy) == ("devices" in told)
    assert "devices" not in told or trouble_in(check.remedy).title == "Device dropped out"


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
