"""In a run with members, peers without a valid access token are refused everywhere; false records steer nobody."""

import json
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from one_hot import OneHotSwarm, give_token, one_hot_card, start_beside

from dalle_lib.auth import Authority, Identity
from dalle_lib.auth.bans import BANS
from dalle_lib.run import RunCard
from dalle_lib.swarm import PeerFailed, PeerSettings, join
from dalle_lib.swarm.peer.membership import IDENTITY, TOKEN

SCRIPT = Path(__file__).parent / "stranger.py"


@pytest.fixture
def authority() -> Authority:
    return Authority.generate()


@pytest.fixture
def card(mini, authority) -> RunCard:
    members = {"authority": authority.public_key, "max_share": 0.7}
    return one_hot_card(mini.with_changes(members=members), state_every=1000, reducers="members")


def start(swarm: OneHotSwarm, folder: Path, **settings) -> subprocess.Popen:
    """Start tests/stranger.py in that folder, by the address of the swarm's first peer."""
    return start_beside(SCRIPT, folder, **swarm.way_in(), **settings)


@pytest.mark.chaos
def test_no_access_token_no_averaging(card, authority, swarm_folder):
    with OneHotSwarm(card, swarm_folder, authority=authority) as swarm:
        ada, _bob = swarm.add(), swarm.add()
        swarm.go()
        swarm.wait_for_epoch(2)
        folders = {name: swarm_folder / name for name in ("nobody", "expired", "other", "thief", "banned", "member")}
        for folder in folders.values():
            Identity.load_or_create(folder / IDENTITY)
        give_token(authority, card, folders["expired"], "eve", valid_for=timedelta(seconds=-60))
        give_token(Authority.generate(), card, folders["other"], "eve")
        give_token(authority, card, folders["member"], "eve")
        give_token(authority, card, folders["banned"], "mallory")
        bans = authority.sign_bans(card.name, 1, ["mallory"], [], timedelta(hours=1)).to_bytes()
        for peer in swarm.peers:
            (peer.folder / BANS).write_bytes(bans)
        shown = {name: str(folder / TOKEN) for name, folder in folders.items()}
        shown |= {"nobody": None, "thief": str(ada.folder / TOKEN)}
        attempts = {name: (str(folder / IDENTITY), shown[name]) for name, folder in folders.items()}
        stranger = start(swarm, swarm_folder / "stranger", attempts=attempts, beside=str(ada.folder))
        told, _ = stranger.communicate(timeout=240)
        answers = dict(json.loads(line) for line in told.splitlines())
        member = answers.pop("member")
        for name, answer in answers.items():
            assert answer["join a group"] == ["PROTOCOL_VIOLATION"], name
            assert answer["join by tuples within tuples"] == ["PROTOCOL_VIOLATION"], name
            assert answer["send a part"] in (["PROTOCOL_VIOLATION"], ["closed"]), name
            assert answer["ask what was sent"] == ["BAD_GROUP_ID"], name
            assert answer["download the state"] == [], name
        assert member["join a group"] != ["PROTOCOL_VIOLATION"]
        assert member["send a part"] == ["BAD_GROUP_ID"]
        assert len(answers) == 5
        for reason in "no valid access token", "expired", "not signed by the authority", "the access token is for peer":
            # Ada tells of problems after her step, which may be a round that still runs.
            swarm.wait(lambda reason=reason: any(reason in event["problem"] for event in ada.events("problem")))
        epoch = ada.epoch
        swarm.wait_together(swarm.peers, after=epoch)


CLAIMS = {
    "it claims epoch 1000000000": {"epoch": 10**9, "samples_accumulated": 0, "samples_per_second": 1.0},
    "1,000,000,000,000 samples": {"samples_accumulated": 10**12, "samples_per_second": 1e12},
}
"""What is said of false records, and what these claim."""


@pytest.mark.chaos
def test_a_members_false_records_steer_nobody(card, authority, swarm_folder):
    with OneHotSwarm(card, swarm_folder, authority=authority) as swarm:
        peers = [swarm.add(), swarm.add(), swarm.add()]
        swarm.go()
        swarm.wait_for_epoch(1)
        for number, (told, claims) in enumerate(CLAIMS.items()):
            folder = swarm_folder / f"liar{number}"
            folder.mkdir()
            give_token(authority, card, folder, f"eve{number}")
            liar = start(swarm, folder, lies={"epoch": peers[0].epoch + 1} | claims)
            assert liar.stdout.readline() == "stored\n"
            swarm.wait(lambda told=told: any(told in event["problem"] for event in peers[0].events("problem")))
            lied_at = peers[0].epoch
            swarm.wait(lambda after=lied_at: len(swarm.together(peers, after=after)) >= 3)
            for peer in peers:
                epochs = [event["epoch"] for event in peer.events("update")]
                assert max(epochs) < 10**6, swarm.told()
            liar.communicate("", timeout=60)


def test_a_peer_without_an_access_token_is_told_what_to_ask_for(card, swarm_folder):
    card.save(swarm_folder / "run")
    peer = join(PeerSettings(run=str(swarm_folder / "run"), name="ada"), swarm_folder / "ada")
    with pytest.raises(PeerFailed, match="is for members: expected an access token") as refused:
        peer.wait(timeout_s=120)
    assert Identity.load_or_create(swarm_folder / "ada" / IDENTITY).peer_id in str(refused.value)
