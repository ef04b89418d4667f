"""The authority as a service: who gets an access token, and each cause for which others get none."""

import base64
import logging
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from auth_asking import NOW, Key, Server

from dalle_lib.auth import AccessToken, BanList, Role
from dalle_lib.auth.authority import authority_key
from dalle_lib.auth.server.database import Database
from dalle_lib.auth.server.limits import Limiter, address_of
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.rehearsal.hub.wire import Fault

KEYS = [Key() for _ in range(3)]
ADA, BOB, CAT = "hf_ada_secret", "hf_bob_secret", "hf_cat_secret"


@pytest.fixture
def server(tmp_path, hub, mini):
    hub.users |= {ADA: User("Ada", {"crew": "read"}), BOB: User("bob", {"others": "read"}), CAT: User("cat", {})}
    made = Server(tmp_path / "authority", hub, mini)
    yield made
    made.stop()


def checked(server: Server, told: dict) -> AccessToken:
    token = AccessToken.from_bytes(base64.b64decode(told["access_token"]))
    token.check(authority_key(server.root.public_key), "club", datetime.fromtimestamp(server.now, UTC))
    return token


def test_a_member_who_approves_gets_one_access_token_across_a_restart(server):
    told = server.device(KEYS[0])
    assert told["proof_until"] == NOW + 168 * 3600
    assert server.poll(KEYS[0], told["handle"]) == (202, {"state": "pending", "interval_s": 1})
    page = server.client.get(f"/join/{told['handle']}").text
    shown = ("club", "ada&#x27;s &lt;peer&gt;", KEYS[0].peer_id, told["code"], "counts until", "on 2027-01-22")
    assert all(text in page for text in shown)
    server.stop()
    server.start()
    server.oauth.answer(told["code"], server.hub.users[ADA])
    server.now += 5
    status, answer = server.poll(KEYS[0], told["handle"])
    assert status == 200, answer
    token = checked(server, answer)
    assert (token.user, token.role, token.peer_id) == ("Ada", Role.VOUCHED, KEYS[0].peer_id)
    assert answer["expires"] == server.now + 3600
    assert server.poll(KEYS[0], told["handle"])[1]["error"] == "used"
    assert server.client.get(f"/join/{told['handle']}").status_code == 410


@pytest.mark.parametrize(
    ("error", "status", "code"), [("access_denied", 403, "denied"), ("expired_token", 410, "code_expired")]
)
def test_what_the_user_or_the_hub_refuses_ends_a_code(server, error, status, code):
    told = server.device(KEYS[0])
    server.oauth.answer(told["code"], None, error)
    found, answer = server.poll(KEYS[0], told["handle"])
    assert (found, answer["error"]) == (status, code)
    assert server.poll(KEYS[0], told["handle"])[1]["error"] == "code_expired"


def test_slow_down_makes_the_interval_longer_and_others_cannot_ask_for_the_result(server):
    told = server.device(KEYS[0])
    server.oauth.answer(told["code"], None, "slow_down")
    assert server.poll(KEYS[0], told["handle"]) == (202, {"state": "pending", "interval_s": 6})
    assert server.poll(KEYS[1], told["handle"])[1]["error"] == "bad_signature"


def test_hidden_organisations_are_not_taken_for_none(server):
    told = server.device(KEYS[0])
    server.oauth.hides = True
    server.oauth.answer(told["code"], server.hub.users[ADA])
    status, answer = server.poll(KEYS[0], told["handle"])
    assert (status, answer["error"]) == (403, "organizations_hidden")


def test_refusals_differ_by_cause(server):
    def refused(*asked) -> tuple[int, str]:
        status, told = server.token(*asked[:2], **(asked[2] if len(asked) > 2 else {}))
        assert told["message"]
        assert told["remedy"]
        return status, told["error"]

    assert refused(KEYS[0], "hf_wrong") == (401, "bad_hub_token")
    assert refused(KEYS[0], BOB) == (403, "not_a_member")
    assert refused(KEYS[0], CAT) == (403, "not_a_member")
    assert refused(KEYS[0], ADA, {"time": int(server.now) - 61}) == (400, "clock_off")
    assert refused(KEYS[0], ADA, {"public_key": "AAAA"}) == (400, "bad_key")
    assert refused(KEYS[0], ADA, {"public_key": server.joining(KEYS[1], "token")["public_key"]}) == (
        400,
        "bad_signature",
    )
    assert refused(KEYS[0], ADA, {"unknown": 1}) == (400, "bad_request")
    assert server.client.get("/runs/another").json()["error"] == "run_unknown"
    server.hub.faults.append(Fault("whoami", times=1, status=503, retry_after=7))
    status, told = server.token(KEYS[0], ADA)
    assert (status, told["error"], told["retry_after_s"]) == (503, "hub_away", 7)
    assert server.token(KEYS[0], ADA)[0] == server.token(KEYS[1], ADA)[0] == 200
    assert refused(KEYS[2], ADA) == (409, "too_many_peers")
    server.change(state="paused", message="back at noon")
    assert refused(KEYS[2], ADA) == (409, "run_paused")
    server.change(state="finished")
    assert refused(KEYS[0], ADA) == (410, "run_finished")
    assert 'cause="run_finished",run="club"} 1.0' in server.client.get("/metrics").text
    assert server.client.get("/healthz").json() == {"status": "ok"}


def test_a_signature_counts_once_also_after_a_restart(server):
    body = server.joining(KEYS[0], "token")
    assert server.post("/token", body, ADA)[0] == 200
    server.stop()
    server.start()
    status, told = server.post("/token", body, ADA)
    assert (status, told["error"]) == (400, "bad_signature")
    assert "used before" in told["message"]


def let_proofs_count(server: Server, hours: int) -> None:
    """Write into the settings of a server that runs for how long a proof of identity counts."""
    settings = server.folder.settings()
    runs = (settings.runs[0].model_copy(update={"proof_hours": hours}),)
    server.folder.save(settings.model_copy(update={"runs": runs}))


@pytest.mark.parametrize("hours", [1, 12, 168, 720])
def test_renewals_go_on_as_long_as_a_proof_counts_with_the_hub_away_and_the_run_paused(server, hours):
    if hours != 168:  # a week, where the settings do not say
        let_proofs_count(server, hours)
    told, ends = server.token(KEYS[0], ADA)[1], NOW + 3600 * hours
    assert told["proof_until"] == ends
    server.change(state="paused")
    with server.hub.away():
        for share in 0.2, 0.9:  # the access token of the longer ones has expired, as when a machine slept
            server.now = NOW + share * 3600 * hours
            status, told = server.renew(KEYS[0], told["access_token"])
            assert (status, told["proof_until"]) == (200, ends)
            assert checked(server, told).expires.timestamp() <= ends
        server.now = ends - 1
        with closing(Database(server.folder.database)) as database:
            database.forget(server.now)  # no peer whose proof counts
        status, told = server.renew(KEYS[0], told["access_token"])
        assert status == 200, told
        server.now += 1
        status, told = server.renew(KEYS[0], told["access_token"])
    assert (status, told["error"]) == (401, "proof_expired")
    assert f"the last one counted until {datetime.fromtimestamp(ends, UTC):%Y-%m-%d %H:%M} UTC" in told["message"]


def test_a_peer_that_sleeps_as_long_as_any_proof_counts_is_not_forgotten(server):
    let_proofs_count(server, 720)
    told = server.token(KEYS[0], ADA)[1]
    server.now = NOW + 720 * 3600 - 1
    with closing(Database(server.folder.database)) as database:
        database.forget(server.now)
    assert server.renew(KEYS[0], told["access_token"])[0] == 200


def test_proofs_count_no_longer_than_the_settings_say_now_and_no_longer_than_when_they_were_made(server):
    told = server.token(KEYS[0], ADA)[1]
    server.now += 600
    let_proofs_count(server, 12)
    told = server.renew(KEYS[0], told["access_token"])[1]
    assert told["proof_until"] == NOW + 600 + 12 * 3600
    let_proofs_count(server, 168)
    server.now += 600
    assert server.renew(KEYS[0], told["access_token"])[1]["proof_until"] == NOW + 600 + 12 * 3600
    assert server.token(KEYS[0], ADA)[1]["proof_until"] == NOW + 1200 + 168 * 3600


@pytest.mark.parametrize(("hours", "told"), [(0, "than or equal to 1, but got 0"), (721, "to 720, but got 721")])
def test_proofs_that_would_count_for_no_time_or_for_months_are_refused_and_a_server_keeps_its_settings(
    server, caplog, hours, told
):
    let_proofs_count(server, hours)
    with pytest.raises(ValueError, match=rf"runs\.0\.proof_hours: .*{told}"):
        server.folder.settings()
    assert server.token(KEYS[0], ADA)[1]["proof_until"] == NOW + 168 * 3600
    assert "the settings stay as they were" in caplog.text


def test_who_left_the_organisation_is_not_renewed_where_its_members_may_be_listed(server):
    lister = server.folder.path / "hub_token"
    lister.write_text(ADA)
    lister.chmod(0o600)
    server.hub.users |= {f"hf_{name}": User(name, {"crew": "read"}) for name in ("dan", "eve", "fay")}
    told = server.token(KEYS[0], "hf_fay")[1]
    status, told = server.renew(KEYS[0], told["access_token"])
    assert status == 200, told
    server.hub.users["hf_fay"] = User("fay", {})
    server.stop()
    server.start()  # forgets the list, which counts for minutes
    assert server.renew(KEYS[0], told["access_token"])[1]["error"] == "not_a_member"
    assert server.renew(KEYS[0], told["access_token"])[1]["error"] == "proof_expired"


def test_a_ban_by_another_process_counts_at_once_and_is_signed(server):
    told = server.token(KEYS[0], ADA)[1]
    before = server.client.get("/runs/club/bans")
    assert server.client.get("/runs/club/bans", headers={"If-None-Match": before.headers["etag"]}).status_code == 304
    command = [sys.executable, "-m", "dalle_lib", "auth-server"]
    folder = ["--folder", str(server.folder.path)]
    subprocess.run([*command, "ban", "ADA", "--reason", "noise", *folder], check=True, timeout=120)
    bans = BanList.from_bytes(server.client.get("/runs/club/bans").content)
    bans.check(authority_key(server.root.public_key), "club", datetime.fromtimestamp(server.now, UTC))
    assert bans.users == {"ada"}
    assert bans.serial > BanList.from_bytes(before.content).serial
    assert server.renew(KEYS[0], told["access_token"])[1]["error"] == "banned"
    assert server.token(KEYS[0], ADA)[1]["error"] == "banned"
    backup = server.folder.path.parent / "backup.sqlite"
    subprocess.run([*command, "backup", str(backup), *folder], check=True, timeout=120)
    with closing(sqlite3.connect(backup)) as copy:
        assert copy.execute("SELECT name FROM bans").fetchall() == [("ada",)]
    assert backup.stat().st_mode & 0o777 == 0o600
    subprocess.run([*command, "unban", "ada", *folder], check=True, timeout=120)
    assert server.token(KEYS[0], ADA)[0] == 200


def test_a_new_signing_key_counts_without_a_restart_and_old_access_tokens_go_on(server):
    old = server.token(KEYS[0], ADA)[1]
    server.root.delegate("club", timedelta(days=4000)).save(server.folder.key("club"))
    status, new = server.renew(KEYS[0], old["access_token"])
    assert status == 200
    assert checked(server, new).delegation != checked(server, old).delegation


def test_nothing_secret_is_written_or_logged(server, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    told = server.device(KEYS[0])
    (device_code,) = server.oauth.flows
    server.client.get(f"/join/{told['handle']}")
    pending = server.written()
    server.oauth.answer(told["code"], server.hub.users[ADA])
    answer = server.poll(KEYS[0], told["handle"])[1]
    body = server.joining(KEYS[1], "token")
    assert server.post("/token", body, ADA)[0] == 200
    server.post("/token", body | {"time": ADA}, ADA)
    server.token(KEYS[1], "hf_false token")
    logged = "\n".join(text for record in caplog.records if "testserver" not in (text := record.getMessage()))
    assert "POST /runs/{run}/device/{handle} 200" in logged
    written = pending + server.written() + logged.encode() + "".join(capfd.readouterr()).encode()
    (approval,) = server.oauth.approvals
    secrets = [ADA, "hf_false", device_code, told["code"], told["handle"], approval, body["signature"]]
    assert [secret for secret in [*secrets, answer["access_token"]] if secret.encode() in written] == []


def test_long_bodies_and_too_many_tries_are_refused(server):
    answer = server.client.post("/runs/club/token", content=b"x" * 20_000)
    assert answer.json()["error"] == "bad_request"
    server.folder.save(server.folder.settings().model_copy(update={"joins_per_minute": 2}))
    told = [server.token(KEYS[0], "hf_wrong") for _ in range(3)]
    assert [status for status, _ in told] == [401, 401, 429]
    assert told[2][1]["retry_after_s"] == 30


def test_limits_are_even_and_addresses_are_those_that_own_proxies_saw():
    limiter = Limiter()
    assert [limiter.wait_s("a", 2, 60, 0.0) for _ in range(3)] == [0, 0, 30]
    assert limiter.wait_s("b", 2, 60, 0.0) == 0
    assert limiter.wait_s("a", 2, 60, 30.0) == 0
    forwarded = "1.1.1.1, 203.0.113.9"
    assert address_of("127.0.0.1", forwarded, 0) == "127.0.0.1"
    assert address_of("127.0.0.1", forwarded, 1) == "203.0.113.9"
    assert address_of("2001:db8::1:2:3:4", "", 0) == address_of("2001:db8::ffff:1", "", 0).replace("::ffff", "::")
