"""Peers of the organiser, which the authority's settings name, get access tokens by their keys alone."""

from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from auth_asking import NOW, Key, Server
from served_authority import ADA, ServedAuthority

from dalle_lib.auth import HubAuthorizer, NotAdmitted, Role
from dalle_lib.auth.keys import PeerKey
from dalle_lib.auth.server import Database, RunSettings
from dalle_lib.auth.tokens import TOKEN
from dalle_lib.rehearsal.hub.stand_in import User
from dalle_lib.run.parts import MembersCard
from dalle_lib.swarm.process.folder import IDENTITY
from dalle_lib.swarm.process.proof import prove_identity

OURS, OTHER = Key(), Key()


def name(server, **peers: Role) -> None:
    """Have the settings of a server name these peers of the organiser, and no others."""
    settings = server.folder.settings()
    runs = (settings.runs[0].model_copy(update={"peers": peers}),)
    server.folder.save(settings.model_copy(update={"runs": runs}))


@pytest.fixture
def server(tmp_path, hub, mini):
    hub.users |= {ADA: User("Ada", {"crew": "read"})}
    made = Server(tmp_path / "authority", hub, mini)
    name(made, **{OURS.peer_id: Role.VOUCHED})
    yield made
    made.stop()


def ask(server: Server, key: Key, **fields) -> tuple[int, dict]:
    return server.post("/peer", server.joining(key, "peer", **fields))


def test_a_named_peer_is_admitted_by_its_key_while_the_hub_is_away_and_the_run_is_paused(server):
    server.change(state="paused")
    with server.hub.away():
        status, told = ask(server, OURS)
    assert (status, told["user"], told["role"]) == (200, "crew", "vouched")
    assert "proof_until" not in told, "nobody has to prove anything"
    with closing(Database(server.folder.database)) as database:
        assert [tuple(row) for row in database.rows("SELECT user, way FROM users")] == [("crew", "peer")]
    assert ask(server, OTHER)[1]["error"] == "not_a_member"
    server.change(state="finished")
    assert ask(server, OURS)[1]["error"] == "run_finished"


def test_a_named_peer_is_renewed_for_longer_than_a_proof_of_identity_counts_until_it_is_named_no_more(server):
    (server.folder.path / "hub_token").write_text(ADA)
    (server.folder.path / "hub_token").chmod(0o600)  # the list of members does not name the organisation itself
    told = ask(server, OURS)[1]
    for _ in range(20):
        server.now += 50_000
        status, told = server.renew(OURS, told["access_token"])
        assert status == 200, told
    assert server.now > NOW + 168 * 3600
    name(server)
    assert server.renew(OURS, told["access_token"])[1]["error"] == "proof_expired"
    assert ask(server, OURS)[1]["error"] == "not_a_member"


def test_a_request_to_admit_another_peer_or_a_repeated_one_is_refused(server):
    false = server.joining(OTHER, "peer") | {"public_key": server.joining(OURS, "peer")["public_key"]}
    assert server.post("/peer", false)[1]["error"] == "bad_signature"
    assert server.post("/peer", server.joining(OURS, "token"))[1]["error"] == "bad_signature", "for another purpose"
    once = server.joining(OURS, "peer")
    assert [server.post("/peer", once)[0] for _ in range(2)] == [200, 400]


@pytest.mark.parametrize("banned", [("peer", OURS.peer_id), ("user", "crew")])
def test_a_named_peer_may_be_banned(server, banned):
    token = ask(server, OURS)[1]["access_token"]
    with closing(Database(server.folder.database)) as database:
        database.ban(*banned, "", NOW)
    assert ask(server, OURS)[1]["error"] == "banned"
    assert server.renew(OURS, token)[1]["error"] == "banned"


def test_a_run_without_an_organisation_has_a_user_for_them_that_nobody_on_the_hub_can_be(server):
    server.change(members=MembersCard(authority=server.root.public_key))
    assert ask(server, OURS)[1]["user"] == "organiser of club"


def test_settings_with_what_is_no_peers_id_are_refused():
    with pytest.raises(ValueError, match="peers"):
        RunSettings(card="card", peers={"ada": "member"})


def test_a_named_peer_whose_access_token_ran_out_gets_one_by_its_key_and_another_does_not(tmp_path, hub, mini):
    served = ServedAuthority(tmp_path / "authority", hub, mini)
    try:
        authorizers = []
        for folder in tmp_path / "ours", tmp_path / "other":
            key = PeerKey.load_or_create(folder / IDENTITY)
            old = served.root.issue("crew", Role.VOUCHED, "club", key.public_key, timedelta(seconds=-5))
            (folder / TOKEN).write_bytes(old.to_bytes())
            authorizers.append(HubAuthorizer(served.card, key, folder))
        settings = served.place.settings()
        runs = (RunSettings(card="card", peers={authorizers[0].key.peer_id: Role.VOUCHED}),)
        served.place.save(settings.model_copy(update={"runs": runs}))
        assert authorizers[0].renew().expires > datetime.now(UTC)
        with pytest.raises(NotAdmitted, match="a proof of identity, but there is none that counts"):
            authorizers[1].renew()
    finally:
        served.stop()


def test_a_named_bootstrap_peer_starts_without_a_person_and_another_asks_one(tmp_path, hub, mini, capsys):
    served = ServedAuthority(tmp_path / "authority", hub, mini)
    try:
        key = PeerKey.load_or_create(tmp_path / "first-peer" / IDENTITY)
        settings = served.place.settings()
        runs = (RunSettings(card="card", peers={key.peer_id: Role.VOUCHED}),)
        served.place.save(settings.model_copy(update={"runs": runs}))
        with hub.away():
            token = prove_identity(served.card, tmp_path / "first-peer", is_bootstrap=True)
        assert (token.user, token.role, token.peer_id) == ("crew", Role.VOUCHED, key.peer_id)
        assert capsys.readouterr().out == ""
        renewed = HubAuthorizer(served.card, key, tmp_path / "first-peer").renew()
        assert (renewed.user, renewed.role) == ("crew", Role.VOUCHED)
        own = PeerKey.load_or_create(tmp_path / "other" / IDENTITY)
        with pytest.raises(NotAdmitted, match=rf"{own.peer_id} is not there\. Join as a member"):
            HubAuthorizer(served.card, own, tmp_path / "other").prove_by_key()
        assert prove_identity(served.card, tmp_path / "other", ADA, is_bootstrap=True).user == "Ada"
    finally:
        served.stop()
