"""How averagers form groups: as in hivemind, among members only."""

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter

from google.protobuf.message import DecodeError
from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import MatchmakingException
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time

from dalle_lib.one_line import in_one_line
from dalle_lib.swarm import wire
from dalle_lib.swarm.averaging.all_reduce import Peers, Tell
from dalle_lib.swarm.averaging.completing import CompletingMatchmaking
from dalle_lib.swarm.averaging.expected import MAX_EXPECTED
from dalle_lib.swarm.averaging.group_keys import SignedKeyManager, bits_of
from dalle_lib.swarm.averaging.introductions import CLOCKS_S, MAX_APART, Introduction, read
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.bounded import put

logger = logging.getLogger(__name__)

AVOID_S = 300.0
"""Seconds in which this peer does not follow a leader that has forged a group, or gathered one and never begun, or
answered what no peer does."""
MAX_WASTED = 2
"""Times in a row that a leader may gather a group and send it away late, as an honest one does that follows another,
refuse a peer late, or lead one whose access token has just expired; and failed rounds, beyond whole ones, that a peer's
own groups forgive each other peer."""
MAX_LED = 4
"""The same of rounds that another peer led: an honest leader has shut out who fails in its groups before. And groups in
a row in which a leader may leave out most of those who are there."""
MAX_GROUPS = 16
"""Groups of which it is known who led them: one is found while the rounds of few others still run, and some never come
to a round."""
UNUSABLE = (ValueError, TypeError, DecodeError)
"""What hivemind's reading of a leader's answer ends with: bytes of no message, an unknown code, an id of no peer."""


class MemberMatchmaking(CompletingMatchmaking):
    """hivemind's matchmaking, which follows members only and forms groups of members only.

    hivemind 1.1.12 checks access tokens in its hash table only; anybody who knows an address can lead or join a group,
    and a leader may tell each follower anything of the others. Here each peer signs what it tells (`introductions.py`).
    With `is_by_epoch`, a peer meets only peers that are in the same epoch.
    """

    cut_off: int = 0
    """In how many rounds in a row that it led this peer has heard nothing of anybody."""

    def __init__(self, *args, trust: Trust, is_by_epoch: bool, tell: Tell, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.trust, self.is_by_epoch, self.tell, self._is_client = trust, is_by_epoch, tell, self.client_mode
        self.avoided: dict[PeerID, float] = {}
        """When this peer follows a leader again that did not do its part, by its id; in seconds of `time.monotonic`."""
        self.wasted: Counter[PeerID] = Counter()
        """How often in a row a leader has wasted this peer's time, or its search, and brought no group."""
        self.narrow: dict[PeerID, int] = {}
        """In how many groups in a row that a leader led this peer most of those who are there were missing."""
        self.kept: Counter[PeerID] = Counter()
        """Seconds for which each leader has kept this peer since `searches_since`, and brought no group."""
        self.searches_since = 0.0
        """When the search for a group in progress began, in hivemind's time."""
        self.again: set[PeerID] = set()
        """Leaders that did not answer in time in this search, and are asked once more."""
        self.failures: dict[PeerID, int] = {}
        """In how many rounds more than not a peer has failed, as `note_round` judges it."""
        self.leader_of: dict[bytes, PeerID] = {}
        """Who led each of the last groups, by their ids: a round may still run while the next group is found."""
        self.asked: dict[PeerID, float] = {}
        """Leaders that are being asked: the first, and those to whom one after the other has sent this peer on; each
        with the time at which it did, infinity until then."""
        made = self.group_key_manager  # hivemind's
        self.group_key_manager = SignedKeyManager(
            made.dht, made.prefix, made.group_bits, made.target_group_size, identity=trust.identity
        )

    @contextlib.asynccontextmanager
    async def looking_for_group(self, step_control: StepControl):
        """Look for a group while this context is open, under a key of this peer's epoch if that matters.

        hivemind looks under the same key in each epoch.
        """
        async with super().looking_for_group(step_control):
            # hivemind lets nobody follow a client, and does not tell others that it is looking for a group.
            self.client_mode = self._is_client or not self._own.may_lead
            if self.is_by_epoch:
                self.group_key_manager.group_bits = bits_of(self._own.epoch)
            self.kept, self.again, self.searches_since = Counter(), set(), get_dht_time()
            yield

    async def refusal(self, peer_id: PeerID, request: averaging_pb2.JoinRequest) -> str | None:
        """Return why a peer that asks to join may not join, or None if it may; nobody waits for one that may not."""
        problem = await self._problem_with(peer_id, request)
        if problem is None:
            self.refused.pop(peer_id, None)
        else:
            put(self.refused, peer_id, problem, MAX_EXPECTED)
        return problem

    async def _problem_with(self, peer_id: PeerID, request: averaging_pb2.JoinRequest) -> str | None:
        if time.monotonic() < self.shut_out.get(peer_id, 0.0):
            return "it has not done its part in the last rounds"
        try:
            told = read(request.gather, peer_id, self._prefix)
        except ValueError as error:
            return str(error)
        left_s = min(self.min_matchmaking_time, CLOCKS_S) + CLOCKS_S  # until all of its group have checked it, too
        if (problem := await self.trust.refusal(str(peer_id), told.token, left_s)) is not None:
            return problem
        if self.step_control is not None and abs(told.epoch - self._own.epoch) > (0 if self.is_by_epoch else MAX_APART):
            return f"it is in epoch {told.epoch}"
        if self.trust.max_peers_per_user is not None:
            return self.trust.too_many(map(str, (*self.current_followers, self.peer_id, peer_id)))
        return None

    async def _request_join_group(self, leader: PeerID) -> GroupInfo | None:
        # hivemind asks each peer that looks for a group to lead this one, and those that a leader suggests.
        if leader in self.asked or time.monotonic() < self.avoided.get(leader, 0.0):
            return None
        # Its followers would count that it has sent them away late: whoever leads it then would have it avoided.
        if self.current_followers and get_dht_time() > (self.searches_since + self.get_request_expiration_time()) / 2:
            return None
        if (problem := await self.trust.refusal(str(leader))) is not None:
            logger.warning("not following %s: %s", leader, problem)
            return None
        group, asked, due = None, get_dht_time(), self.get_request_expiration_time()
        if self.asked:  # by a leader that sends this peer on, and whose part that was
            self.asked[next(reversed(self.asked))] = asked
            self.was_accepted_to_group.clear()
        accepted = asyncio.ensure_future(self.was_accepted_to_group.wait())
        self.asked[leader] = math.inf
        try:
            group = await super()._request_join_group(leader)
        except UNUSABLE as error:  # hivemind would give up the round
            self._avoid(leader, f"its answer cannot be used: {in_one_line(error)}")
        finally:
            let_go, was_accepted = min(self.asked.pop(leader), get_dht_time()), accepted.done()
            accepted.cancel()
            # Whoever was named too late, by a leader that sends its followers on, could do nothing in time.
            had_time = asked < due
            if group is None and had_time and let_go > due + self.request_timeout / 2:
                self._avoid(leader, "it gathered a group and never began its round")
        is_first = leader not in self.again
        if group is None and not was_accepted and had_time and is_first and let_go - asked >= self.request_timeout:
            # On a busy machine even an honest leader may be late; hivemind would ask no more in this search.
            self.again.add(leader)
            attempts = self.potential_leaders.past_attempts
            attempts -= {attempt for attempt in attempts if attempt[0] == leader}
            return None
        was_late = let_go > ((asked + due) / 2 if was_accepted else asked + self.request_timeout / 2)
        self.kept[leader] += max(0.0, let_go - asked)
        if was_accepted and self.kept[leader] > (due - self.searches_since) / 2:
            was_late, self.kept[leader] = True, -math.inf  # for short times, but again and again: once in a search
        if group is not None:
            self.wasted.pop(leader, None)
            self._judge_breadth(leader, group)
        elif was_late and had_time and time.monotonic() >= self.avoided.get(leader, 0.0):
            did = "gathered a group and sent it away late" if was_accepted else "answered late that it leads none"
            self._count_wasted(leader, did)
        return group

    def _count_wasted(self, leader: PeerID, did: str) -> None:
        self.wasted[leader] += 1
        if (times := self.wasted[leader]) > MAX_WASTED:
            self._avoid(leader, f"it {did}, {times} times in a row")

    def _judge_breadth(self, leader: PeerID, group: GroupInfo) -> None:
        """Avoid who leads this peer, again and again, into groups without most of the users that are there.

        Such rounds do not fail, though they keep all apart. The leader counts on neither side: it would be half of two.
        Whoever has told of its progress as long ago as a group waits for it may be gone.
        """
        if (told := self.expected.of(self._epoch)) is None:
            return
        since, user = get_dht_time() - self.patience.longest_s, self.trust.user_of
        there = {user(str(peer)) for peer, of in told.items() if of.counts and of.at > since} - {user(str(leader))}
        inside = there & {user(str(peer)) for peer in group.peer_ids}
        # This peer itself is there, and inside.
        times = self.narrow.pop(leader, 0) + 1 if 2 * (len(inside) + 1) < len(there) + 1 else 0
        if times > MAX_LED:
            self._avoid(leader, f"the groups that it led lacked most of those who were there, {times} times in a row")
        elif times:
            put(self.narrow, leader, times, MAX_EXPECTED)

    def note_round(
        self,
        group: GroupInfo,
        failed: Peers,
        refused: Peers,
        slow: Peers = (),
        cheap: Peers = (),
        heard: Peers = (),
    ) -> None:
        """Take note of who has not done its part in a round, as `Runner` has them.

        A leader that tells each follower of another group makes them fail for each other. So this peer judges others
        one by one only where it leads, but for `cheap` failures; elsewhere it judges the leader, by whether all did
        their part. Whose tensors were refused has cost no time: it is judged by that only as the leader of a group that
        would be better without it. Who was in the round, as its tensors show, but too slow, is no other's fault. A
        leader blames nobody when it hears nothing of two others or more, MAX_LED times in a row: its network is lost.
        Who fails again and again is named, and neither followed nor let into a group for some time.
        """
        if (leader := self.leader_of.pop(group.group_id, None)) is None:
            return  # it was found many groups ago
        if leader == self.peer_id:
            others = set(group.peer_ids) - {self.peer_id}
            is_cut_off = len(others) > 1 and others <= set(failed) - set(heard)
            self.cut_off = self.cut_off + 1 if is_cut_off else 0
            if is_cut_off and self.cut_off <= MAX_LED:
                return
            judged = {peer: peer in failed for peer in others - set(cheap)}
            most, what = MAX_WASTED, "it did not do its part in {} rounds"
        else:
            has_failed = any(peer == leader or peer not in slow for peer in failed) or leader in refused
            judged, most, what = {leader: has_failed}, MAX_LED, "{} rounds that it led failed"
        for peer, has_failed in judged.items():
            times = max(0, self.failures.pop(peer, 0) + (1 if has_failed else -1))
            if has_failed and times > most:
                self.shut_out = self._still(self.shut_out) | {peer: time.monotonic() + AVOID_S}
                self._avoid(peer, what.format(times))
            elif times:
                self.failures[peer] = times

    async def follower_assemble_group(self, leader: PeerID, msg: averaging_pb2.MessageFromLeader) -> GroupInfo:
        """Return the group that a leader has assembled.

        Raises MatchmakingException if one of it may not take part, or the leader has changed what a peer told; such a
        leader is named and avoided. hivemind takes any group that a leader names.
        """
        try:
            told = self._told_in(msg)
        except ValueError as forged:
            self._avoid(leader, f"the group that it leads is refused: {forged}")
            raise MatchmakingException(f"the group of {leader} is refused: {forged}") from forged
        for peer, introduction in told.items():
            if (problem := await self.trust.refusal(str(peer), introduction.token)) is not None:
                self._count_wasted(leader, "led a group with a peer that may not take part")
                raise MatchmakingException(f"the group of {leader} is refused: {peer} may not take part: {problem}")
        # Not before here: the users of peers that it has never met are told by the access tokens of this message.
        trust = self.trust.of_group({str(peer): introduction.token for peer, introduction in told.items()})
        if (problem := trust.too_many(map(str, told))) is not None:
            self._count_wasted(leader, "led a group with too many peers of one user")
            raise MatchmakingException(f"the group of {leader} is refused: {problem}")
        put(self.leader_of, msg.group_id, leader, MAX_GROUPS)
        return await super().follower_assemble_group(leader, msg)

    async def leader_assemble_group(self) -> GroupInfo:
        """Return the group of this peer and those who follow it, as hivemind does, without too many of one user."""
        told = {peer: read(of.gather, peer, self._prefix, math.inf) for peer, of in self.current_followers.items()}
        tokens = {peer: of.token for peer, of in told.items()}
        for peer in self.trust.surplus({self.peer_id: self.trust.token} | tokens):  # several may have come at once
            self.current_followers.pop(peer)
        group = await super().leader_assemble_group()
        put(self.leader_of, group.group_id, self.peer_id, MAX_GROUPS)
        return group

    def _told_in(self, msg: averaging_pb2.MessageFromLeader) -> dict[PeerID, Introduction]:
        """Return what each peer of a group tells. Signatures are checked, membership is not.

        Raises ValueError for what no honest leader would have sent.
        """
        if len(msg.group_id) > wire.PEER_ID_BYTES or msg.group_id in self.leader_of:
            raise ValueError(f"its group's id has {len(msg.group_id):,} bytes, or is that of another group")
        if len(msg.gathered) != len(msg.ordered_peer_ids):
            raise ValueError(f"it names {len(msg.ordered_peer_ids)} peers, and tells of {len(msg.gathered)}")
        if any(len(item) > wire.PEER_ID_BYTES for item in msg.ordered_peer_ids):
            raise ValueError("it names a peer with an id that is none")
        gathered = dict(zip(map(PeerID, msg.ordered_peer_ids), msg.gathered, strict=True))
        if len(gathered) < len(msg.gathered):
            raise ValueError("it names a peer twice")
        if gathered.get(self.peer_id) != self.step_control.data_for_gather:
            raise ValueError("it has changed or left out what this peer told it")
        told, own = {}, self._own
        for peer, message in gathered.items():
            try:
                told[peer] = read(message, peer, self._prefix, self.min_matchmaking_time + CLOCKS_S)
            except ValueError as error:
                raise ValueError(f"{peer}: {error}") from error
            if self.is_by_epoch and told[peer].epoch != own.epoch:
                raise ValueError(f"{peer} is in epoch {told[peer].epoch}")
        if not any(introduction.is_reducer for introduction in told.values()):
            raise ValueError("nobody in it can reduce, though whoever leads can")
        return told

    def _avoid(self, leader: PeerID, why: str) -> None:
        self.avoided = self._still(self.avoided) | {leader: time.monotonic() + AVOID_S}
        self.wasted.pop(leader, None)
        self.tell(leader, why)
