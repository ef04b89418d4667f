"""Who gets an access token: each way in, with all that is checked on it."""

import base64
import logging
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dalle_lib.auth.authority import authority_key
from dalle_lib.auth.server.database import MAX_DEVICES, MAX_SIGNATURES, Database, hashed
from dalle_lib.auth.server.hub import HubClient, HubUser, require_member
from dalle_lib.auth.server.limits import Limiter, first_part
from dalle_lib.auth.server.refusals import AGAIN, BEGIN_AGAIN, Refusal, too_many_tries
from dalle_lib.auth.server.requests import (
    CLOCK_S,
    Join,
    Renewal,
    Signed,
    check_clock,
    check_signature,
    from_base64,
    peer_key,
)
from dalle_lib.auth.server.runs import Runs, ServedRun
from dalle_lib.auth.server.sealing import sealed, unsealed
from dalle_lib.auth.signing import signed_text
from dalle_lib.auth.tokens import AccessToken
from dalle_lib.one_line import in_one_line
from dalle_lib.peer_keys import Refused, peer_id_of

logger = logging.getLogger(__name__)

MAX_PENDING = 3
"""Device flows of one peer that may be open at a time."""


@dataclass(frozen=True)
class Peer:
    """The peer that asks."""

    public_key: bytes
    name: str
    platform: str

    @property
    def id(self) -> str:
        """Its libp2p id."""
        return peer_id_of(self.public_key)


class Admission:
    """Answers requests for access tokens. Each method raises Refusal, with its cause, where it gives none."""

    def __init__(self, runs: Runs, database: Database, hub: HubClient) -> None:
        self.runs, self.database, self.hub = runs, database, hub
        self.joins, self.users = Limiter(), Limiter()

    def begin(self) -> None:
        """End the device flows whose approval was lost when the server ended."""
        self.database.change("UPDATE devices SET state = 'expired' WHERE state = 'spent'")

    async def device(self, run: ServedRun, asked: Join, address: str, now: float) -> dict:
        """Begin a device flow, and return its handle, with the link and the code for the user."""
        peer = self._joining(run, "device", asked, address, now)
        if run.card.members.client_id is None:
            raise Refusal("bad_request", "expected a run with a client_id in its card, but this one has none.",
                          "Join with a Hub token instead, or ask the organiser.")  # fmt: skip
        pending = "SELECT COUNT(*) FROM devices WHERE state = 'pending' AND peer = :peer AND expires > :now"
        if self.database.count(pending, peer=peer.id, now=now) >= MAX_PENDING:
            raise too_many_tries("this peer, whose earlier codes are still open", 60)
        if self.database.count("SELECT COUNT(*) FROM devices WHERE state = 'pending'") >= MAX_DEVICES:
            raise Refusal("busy", "too many volunteers are joining now.", AGAIN, retry_after_s=60)
        flow = await self.hub.begin(run.card.members.client_id)
        handle = secrets.token_urlsafe(24)
        told = {"device_code": flow.device_code, "code": flow.user_code, "url": flow.url}
        self.database.insert(
            "devices", handle=hashed(handle), run=run.name, public_key=peer.public_key, peer=peer.id, name=peer.name,
            platform=peer.platform, address=first_part(address), asked=now, expires=now + flow.expires_s,
            interval_s=flow.interval_s, next_poll=now, state="pending", sealed=sealed(handle, told),
        )  # fmt: skip
        times = {"interval_s": flow.interval_s, "expires_s": flow.expires_s, "proof_until": int(now + run.proof_s)}
        return {"handle": handle, "url": flow.url, "code": flow.user_code, **times}

    async def poll(self, run: ServedRun, handle: str, asked: Signed, now: float) -> tuple[int, dict]:
        """Return 202 while the user has not approved, and 200 with the access token once they have."""
        row = self.database.row("SELECT * FROM devices WHERE handle = :handle AND run = :run",
                                handle=hashed(handle), run=run.name)  # fmt: skip
        if row is None:
            raise Refusal("code_expired", "expected a code of the last minutes, but it has expired.", BEGIN_AGAIN)
        peer = Peer(row["public_key"], row["name"], row["platform"])
        self._proved(run, "poll", asked, handle, peer, now)
        if row["state"] == "used":
            raise Refusal("used", "expected a new code, but this one has given its access token.", BEGIN_AGAIN)
        if row["state"] == "spent" and row["expires"] > now:  # another request of this peer hears whose approval it is
            return 202, {"state": "pending", "interval_s": row["interval_s"]}
        if row["state"] != "pending" or row["expires"] <= now:
            self._end(handle, "expired")
            raise Refusal("code_expired", "expected an approval before the code expired.", BEGIN_AGAIN)
        claim = (
            "UPDATE devices SET next_poll = :next WHERE handle = :handle AND next_poll <= :now AND state = 'pending'"
        )
        interval = row["interval_s"]
        if not self.database.change(claim, next=now + interval * 0.9, handle=hashed(handle), now=now):
            return 202, {"state": "pending", "interval_s": interval}
        code = unsealed(handle, row["sealed"])["device_code"]
        try:
            told = await self.hub.approved(run.card.members.client_id or "", code)
        except Refusal as refusal:
            if refusal.code in ("denied", "code_expired") and not self._end(handle, refusal.code, of="pending"):
                return 202, {"state": "pending", "interval_s": interval}  # another request has the approval meanwhile
            raise
        if isinstance(told, int):
            slower = interval + told
            self.database.change("UPDATE devices SET interval_s = :slower WHERE handle = :handle",
                                 slower=slower, handle=hashed(handle))  # fmt: skip
            return 202, {"state": "pending", "interval_s": slower}
        self._end(handle, "spent")  # the Hub gives an approval once
        try:
            answer = self._admitted(run, peer, await self.hub.user_of_approval(told), "device", now)
        except Exception:
            self._end(handle, "expired")  # who asks again hears to begin again, and does not wait
            raise
        self._end(handle, "used")
        return 200, answer

    async def token(self, run: ServedRun, asked: Join, hub_token: str, address: str, now: float) -> dict:
        """Return an access token for the peer of the user whose Hub token this is."""
        peer = self._joining(run, "token", asked, address, now)
        return self._admitted(run, peer, await self.hub.user_of_token(hub_token), "token", now)

    def peer(self, run: ServedRun, asked: Join, address: str, now: float) -> dict:
        """Return an access token for a peer of the organiser, which the settings name by its id: its key is the proof.

        A paused run takes it, too: first peers serve those who are there.
        """
        peer = self._asking(run, "peer", asked, address, now)
        if peer.id not in run.peers:
            raise Refusal("not_a_member", f"expected a peer that this authority's settings name, but {peer.id} is not "
                          "there.", "Join as a member, or add it to the run's peers in server.json.")  # fmt: skip
        self._require_state(run, new=False)
        self._require_not_banned(run.organiser, peer)
        return self._first(run, peer, run.organiser, "peer", now)

    async def renewal(self, run: ServedRun, asked: Renewal, now: float) -> dict:
        """Return a new access token in the place of another, as long as the Hub's proof is not too old.

        The other may have expired, as when a peer's machine slept: the peer's key signs, and the data base knows until
        when its user's proof counts. A peer of the organiser proves itself anew each time, by its key.
        """
        try:
            old = AccessToken.from_bytes(from_base64(asked.access_token, "an access token", "proof_expired"))
            old.check_issued(authority_key(run.card.members.authority), run.name)
        except (Refused, ValueError) as error:
            raise Refusal("proof_expired", str(error), "Prove your identity again.") from None
        row = self.database.row("SELECT * FROM peers WHERE run = :run AND peer = :peer", run=run.name, peer=old.peer_id)
        known = row is not None and row["user"] == old.user
        peer = Peer(old.public_key, row["name"] if known else "", row["platform"] if known else "")
        self._proved(run, "renewal", asked, asked.nonce, peer, now)
        if known and peer.id in run.peers and old.user == run.organiser:
            self._require_state(run, new=False)
            self._require_not_banned(old.user, peer)
            return self._issued(run, peer, old.user, now + run.proof_s, now)
        if not known or row["proof_until"] <= now or old.user == run.organiser:
            raise _proof_ended(row["proof_until"] if known else 0)
        organisation, lister = run.card.members.organization, self._lister()
        if organisation and lister and await self.hub.is_listed(organisation, old.user, lister) is False:
            ended = "UPDATE peers SET proof_until = 0 WHERE run = :run AND user = :user"
            self.database.change(ended, run=run.name, user=old.user)
            require_member(HubUser(old.user, frozenset(), True), organisation, run.card.members.invitation, False)
        self._require_state(run, new=False)
        self._require_not_banned(old.user, peer)
        return self._issued(run, peer, old.user, min(row["proof_until"], now + run.proof_s), now)

    def _lister(self) -> str | None:
        """Return the Hub token that lists members; None where the organiser gave none, or none that can be used."""
        try:
            return self.runs.folder.members_token()
        except (ValueError, OSError) as error:
            logger.error("renewals count without a look at the members: %s", in_one_line(error))
            return None

    def _joining(self, run: ServedRun, purpose: str, asked: Join, address: str, now: float) -> Peer:
        peer = self._asking(run, purpose, asked, address, now)
        self._require_state(run, new=True)
        return peer

    def _asking(self, run: ServedRun, purpose: str, asked: Join, address: str, now: float) -> Peer:
        if wait_s := self.joins.wait_s(address, self.runs.settings.joins_per_minute, 60, now):
            raise too_many_tries("your address", wait_s)
        peer = Peer(peer_key(asked.public_key), asked.peer_name, asked.platform)
        self._proved(run, purpose, asked, asked.nonce, peer, now)
        return peer

    def _proved(self, run: ServedRun, purpose: str, asked: Signed, nonce: str, peer: Peer, now: float) -> None:
        """Return None if the peer has signed this, now, and not before."""
        check_clock(asked.time, now)
        signed = signed_text(purpose, run.name, nonce, asked.time)
        digest = check_signature(peer.public_key, asked.signature, signed)
        if self.database.count("SELECT COUNT(*) FROM signatures") >= MAX_SIGNATURES:
            raise Refusal("busy", "too many requests are coming now.", AGAIN, retry_after_s=60)
        if not self.database.remember_signature(digest, now + 3 * CLOCK_S):
            raise Refusal(
                "bad_signature", "expected a new signature, but this one was used before.", "Sign each request."
            )
        if peer.id in self.database.banned()["peer"]:
            raise _banned("this peer")

    def _require_state(self, run: ServedRun, new: bool) -> None:
        said = f" Its organiser says: {run.card.message}" if run.card.message else ""
        if run.card.state == "finished":
            raise Refusal("run_finished", f"expected an open run, but {run.name} is finished.{said}",
                          "Draw with its model.")  # fmt: skip
        if new and run.card.state == "paused":
            raise Refusal("run_paused", f"expected an open run, but {run.name} is paused.{said}", "Try again later.")

    def _require_not_banned(self, user: str, peer: Peer) -> None:
        banned = self.database.banned()
        if user.casefold() in banned["user"]:
            raise _banned(user)
        if peer.id in banned["peer"]:
            raise _banned("this peer")

    def _admitted(self, run: ServedRun, peer: Peer, user: HubUser, way: str, now: float) -> dict:
        self._require_not_banned(user.name, peer)
        require_member(user, run.card.members.organization, run.card.members.invitation, of_token=way == "token")
        self._require_state(run, new=True)
        return self._first(run, peer, user.name, way, now)

    def _first(self, run: ServedRun, peer: Peer, user: str, way: str, now: float) -> dict:
        """Return the access token of a peer whose user was proved just now, and remember both."""
        answer = self._issued(run, peer, user, now + run.proof_s, now)
        self.database.change(
            "INSERT INTO users VALUES (:run, :user, :way, :now, :now) "
            "ON CONFLICT DO UPDATE SET proved = :now, way = :way",
            run=run.name, user=user, way=way, now=now,
        )  # fmt: skip
        return answer

    def _issued(self, run: ServedRun, peer: Peer, user: str, proof_until: float, now: float) -> dict:
        """Return a signed access token, and remember its peer."""
        wait_s = self.users.wait_s(f"{run.name} {user}", self.runs.settings.joins_per_hour, 3600, now)
        if wait_s:
            raise too_many_tries(f"the user {user}", wait_s)
        longest_s, role = self.runs.settings.access_s, run.role(user, peer.id)
        valid_for = timedelta(seconds=min(longest_s, proof_until - now))
        with self.database.writing():
            others = "SELECT COUNT(*) FROM peers WHERE run = :run AND user = :user AND peer != :peer AND expires > :now"
            count = self.database.count(others, run=run.name, user=user, peer=peer.id, now=now)
            if count >= run.card.members.max_peers:
                raise Refusal(
                    "too_many_peers",
                    f"expected at most {run.card.members.max_peers} peers of one user, but {user} has {count} others.",
                    f"Stop one of them, and wait until its access token ends, at most {longest_s} seconds.",
                )
            try:
                token = run.key.issue(user, role, run.name, peer.public_key, valid_for, _time(now))
            except ValueError as error:
                raise Refusal("busy", f"this authority cannot sign: {error}", "Tell the run's organiser.",
                              retry_after_s=600) from error  # fmt: skip
            expires = token.expires.timestamp()
            first = "SELECT first_seen FROM peers WHERE run = :run AND peer = :peer"
            row = self.database.row(first, run=run.name, peer=peer.id)
            self.database.insert(
                "peers", run=run.name, peer=peer.id, user=user, name=peer.name, platform=peer.platform,
                first_seen=row["first_seen"] if row else now, renewed=now, expires=expires, proof_until=proof_until,
            )  # fmt: skip
        data = base64.b64encode(token.to_bytes()).decode()
        told = {"access_token": data, "user": user, "role": role.value, "expires": int(expires)}
        return told if user == run.organiser else told | {"proof_until": int(proof_until)}

    def _end(self, handle: str, state: str, of: str | None = None) -> bool:
        """Close a device flow, or only one in the state `of`, and return whether it was; its codes are forgotten."""
        ended = "UPDATE devices SET state = :state, sealed = NULL WHERE handle = :handle AND state = IFNULL(:of, state)"
        return self.database.change(ended, state=state, handle=hashed(handle), of=of) == 1


def _banned(whom: str) -> Refusal:
    return Refusal("banned", f"expected a welcome member, but {whom} is banned.", "Ask the run's organiser why.")


def _proof_ended(until: float) -> Refusal:
    """Return the refusal for a peer whose user's last proof counted until then; 0 for one that has none."""
    last = f"the last one counted until {_time(until):%Y-%m-%d %H:%M} UTC" if until else "there is none that counts"
    return Refusal("proof_expired", f"expected a proof of identity, but {last}.", "Prove it again.")


def _time(now: float) -> datetime:
    return datetime.fromtimestamp(now, UTC)
