"""What an attacker, a clock, a disk and a slow Hub could do to an authority's server."""

import sqlite3
from contextlib import suppress

from test_auth_server import ADA, KEYS, server  # noqa: F401  (a fixture)

from dalle_lib.auth.server.database import Database, hashed
from dalle_lib.auth.server.limits import Limiter


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
