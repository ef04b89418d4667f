"""What an attacker, a clock, a disk and a slow Hub could do to an authority's server."""

import asyncio
import sqlite3
from contextlib import suppress

import pytest
from fastapi import Request
from test_auth_server import ADA, KEYS, server  # noqa: F401  (a fixture)

from dalle_lib.auth.server import RunSettings
from dalle_lib.auth.server.database import Database, hashed
from dalle_lib.auth.server.limits import Limiter
from dalle_lib.auth.server.refusals import Refusal, hub_away
from dalle_lib.auth.server.requests import Signed, read


def test_a_second_question_while_the_hub_names_the_user_loses_no_approval(server):  # noqa: F811
    told = server.device(KEYS[0])
    with sqlite3.connect(server.folder.database) as other:
        other.execute("UPDATE devices SET state = 'spent' WHERE handle = ?", (hashed(told["handle"]),))
    assert server.poll(KEYS[0], told["handle"]) == (202, {"state": "pending", "interval_s": told["interval_s"]})
    with sqlite3.connect(server.folder.database) as other:
        assert other.execute("SELECT state FROM devices").fetchall() == [("spent",)]


def test_what_a_client_says_of_its_address_counts_nothing_behind_a_proxy_that_adds_a_line(server):  # noqa: F811
    server.folder.save(server.folder.settings().model_copy(update={"proxies": 1, "requests_per_minute": 2}))
    told = []
    for number in range(4):
        lines = [("X-Forwarded-For", f"192.0.2.{number}"), ("X-Forwarded-For", "203.0.113.9")]
        told.append(server.client.get("/runs/club", headers=lines).status_code)
    assert told[-1] == 429


def test_a_clock_that_is_set_back_locks_nobody_out_for_long():
    limiter = Limiter()
    assert [limiter.wait_s("a", 2, 60, 86_400.0) for _ in range(2)] == [0, 0]
    assert limiter.wait_s("a", 2, 60, 0.0) == 30
    assert limiter.wait_s("a", 2, 60, 60.0) == 0


def test_a_change_that_cannot_be_finished_does_not_end_those_after_it(tmp_path):
    database = Database(tmp_path / "authority.sqlite")
    with suppress(sqlite3.Error), database.writing():
        database.change("CREATE TABLE one (id INTEGER PRIMARY KEY)")
        database.change("CREATE TABLE two (one INTEGER REFERENCES one (id) DEFERRABLE INITIALLY DEFERRED)")
        database.change("INSERT INTO two VALUES (7)")  # at the end of the block there is no such row in one
    with database.writing():
        database.beat(1.0)
    assert database.count("SELECT COUNT(*) FROM heartbeat") == 1
    database.close()


def test_a_ban_counts_that_comes_while_the_hub_is_asked(server, monkeypatch):  # noqa: F811
    told = server.token(KEYS[0], ADA)[1]
    (server.folder.path / "hub_token").write_text("hf_lists")
    (server.folder.path / "hub_token").chmod(0o600)

    async def is_listed(_hub, _organisation: str, user: str, _token: str) -> bool:
        with sqlite3.connect(server.folder.database) as other:
            other.execute("INSERT INTO bans VALUES ('user', ?, 0, '')", (user.casefold(),))
        return True

    monkeypatch.setattr("dalle_lib.auth.server.hub.HubClient.is_listed", is_listed)
    assert server.renew(KEYS[0], told["access_token"])[1]["error"] == "banned"


def test_a_card_that_is_gone_leaves_the_last_that_worked(server):  # noqa: F811
    told = server.token(KEYS[0], ADA)[1]
    (server.folder.path / "card" / "run.json").unlink()
    settings = server.folder.settings()
    missing = RunSettings(card="no-such-card")
    server.folder.save(settings.model_copy(update={"runs": (missing, *settings.runs)}))
    assert [server.renew(KEYS[0], told["access_token"])[0] for _ in range(2)] == [200, 200]


def test_methods_that_a_sender_invents_make_no_new_figures(server):  # noqa: F811
    for method in "BREW", "HEAD", "WHEN":
        assert server.client.request(method, "/healthz").status_code == 405
    figures = server.client.get("/metrics").text
    assert 'authority_requests_total{method="other",route="/healthz",status="405"} 3.0' in figures
    assert "BREW" not in figures


def test_a_sender_who_goes_away_is_no_fault():
    async def receive() -> dict:
        return {"type": "http.disconnect"}

    with pytest.raises(Refusal, match="went away"):
        asyncio.run(read(Request({"type": "http"}, receive), Signed))


@pytest.mark.parametrize(("data", "mode"), [(b"hf_lists", 0o644), ("hf_é".encode(), 0o600), (b"x" * 100_000, 0o600)])
def test_a_hub_token_that_cannot_be_used_ends_no_renewals(server, caplog, data, mode):  # noqa: F811
    told = server.token(KEYS[0], ADA)[1]
    file = server.folder.path / "hub_token"
    file.write_bytes(data)
    file.chmod(mode)
    assert server.renew(KEYS[0], told["access_token"])[0] == 200
    assert "renewals count without a look at the members" in caplog.text


@pytest.mark.parametrize("fault", ["an answer of the Hub", "an end of the server"])
def test_who_asks_after_an_approval_that_was_lost_hears_to_begin_again(server, monkeypatch, fault):  # noqa: F811
    async def user_of_approval(_hub, _token: str) -> None:
        raise hub_away("this is a test")

    told = server.device(KEYS[0])
    if fault == "an answer of the Hub":
        monkeypatch.setattr("dalle_lib.auth.server.hub.HubClient.user_of_approval", user_of_approval)
        server.oauth.answer(told["code"], server.hub.users[ADA])
        assert server.poll(KEYS[0], told["handle"])[1]["error"] == "hub_away"
    else:
        server.stop()
        with sqlite3.connect(server.folder.database) as other:
            other.execute("UPDATE devices SET state = 'spent'")
        server.start()
    server.now += 5
    assert server.poll(KEYS[0], told["handle"])[1]["error"] == "code_expired"


def test_a_second_question_that_the_hub_refuses_ends_no_approval_of_the_first(server, monkeypatch):  # noqa: F811
    told = server.device(KEYS[0])

    async def approved(_hub, _client_id: str, _code: str) -> None:
        with sqlite3.connect(server.folder.database) as other:  # as the first question does, once the Hub has answered
            other.execute("UPDATE devices SET state = 'spent'")
        raise Refusal("code_expired", "expected an approval.", "Begin again.")

    monkeypatch.setattr("dalle_lib.auth.server.hub.HubClient.approved", approved)
    assert server.poll(KEYS[0], told["handle"])[0] == 202
    with sqlite3.connect(server.folder.database) as other:
        assert other.execute("SELECT state FROM devices").fetchall() == [("spent",)]


ODD = ["told", 7, [7], {"name": 7}, [{"name": ["crew"]}], [{"preferred_username": {}}], [None]]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_odd_answers_of_the_hub_are_no_fault_of_the_server(server, monkeypatch, odd):  # noqa: F811
    good = {"type": "user", "name": "Ada", "preferred_username": "Ada", "verification_uri": "https://a.b"}
    answers = [good | {"orgs": odd}, good | {"auth": odd}, good | {"auth": {"accessToken": odd}}]
    answers += [good | {"device_code": "d", "user_code": "c", "expires_in": odd, "interval": 1e999}]
    answers += [good | {"device_code": "d", "user_code": "\ud800"}, {"device_code": 7, "user_code": 7}]
    answers += [{"device_code": "d", "user_code": "c", "verification_uri": "javascript://localhost/x"}]
    for told in answers:

        async def ask(_hub, _method: str, _path: str, told=told, **_options) -> tuple[int, dict]:
            return 200, told

        monkeypatch.setattr("dalle_lib.auth.server.hub.HubClient._ask", ask)
        assert server.token(KEYS[0], ADA)[0] in (401, 403, 503)
        assert server.post("/device", server.joining(KEYS[1], "device"))[0] == 503


def test_a_token_that_a_user_gave_to_an_app_proves_nothing(server, monkeypatch):  # noqa: F811
    async def ask(_hub, _method: str, _path: str, **_options) -> tuple[int, dict]:
        crew = {"name": "crew", "roleInOrg": "read"}
        return 200, {"type": "user", "name": "Ada", "orgs": [crew], "auth": {"type": "oauth"}}

    monkeypatch.setattr("dalle_lib.auth.server.hub.HubClient._ask", ask)
    status, told = server.token(KEYS[0], ADA)
    assert (status, told["error"]) == (401, "bad_hub_token")
    assert "given to an app" in told["message"]
