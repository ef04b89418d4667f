"""From signed records to the status of a swarm: the same for those in the hash table now and for recorded ones."""

from collections.abc import Callable, Collection, Iterable, Sequence

from hivemind.dht.validation import DHTRecord

from dalle_lib.auth import AccessToken
from dalle_lib.run import RunCard
from dalle_lib.swarm.peer.metrics import MetricsBoard
from dalle_lib.swarm.process.signed import SignedLook, SignedRecord
from dalle_lib.swarm.process.status import MAX_SHOWN, PeerStatus, SwarmStatus, median_epoch

TokensOf = Callable[[Sequence[PeerStatus]], dict[str, AccessToken]]
"""Gives the access token of each peer that is a member's, by its id."""


class Looks:
    """Makes a status of each look at a board; the run's epoch is what the median user's trainers say of themselves."""

    def __init__(self, board: MetricsBoard, card: RunCard, tokens_of: TokensOf | None = None) -> None:
        """With `tokens_of`, nothing is told of peers that are not members'."""
        self._board, self._card, self._tokens_of = board, card, tokens_of
        self._epoch, self._before = 0, frozenset[str]()
        self._tokens: dict[str, AccessToken] = {}

    def status(self, records: Sequence[DHTRecord], now: float) -> SwarmStatus:
        """Return what records, whose signatures have been checked, say at a time in seconds since 1970."""
        total_epochs = self._card.optimizer.total_epochs
        found, said_complete = self._board.told_by(records, now, total_epochs)
        tokens = self._tokens_of(found) if self._tokens_of else {}
        peers = shown([peer for peer in found if peer.peer_id in tokens] if self._tokens_of else found, self._before)
        self._before = frozenset(peer.peer_id for peer in peers)
        self._tokens = {peer: token for peer, token in tokens.items() if peer in self._before}
        users = {peer: token.user for peer, token in self._tokens.items()}
        if peers:
            self._epoch = median_epoch([peer for peer in peers if not peer.is_held] or peers, users, total_epochs)
        elif said_complete:
            self._epoch = total_epochs
        return SwarmStatus(
            time=now, epoch=self._epoch, total_epochs=total_epochs, samples_in_epoch=None,
            target_batch_size=self._card.averaging.target_batch_size, peers=peers, not_shown=len(found) - len(peers),
            said_complete=said_complete, users=users,
        )  # fmt: skip

    def signed(self, records: Iterable[DHTRecord], status: SwarmStatus) -> SignedLook:
        """Return what was signed of the status that `status` made last of these records.

        What peers say whose users want no name told is left out, as it would tell their ids.
        """
        kept = {}
        for each in records:
            told = self._board.believed(each, status.time)
            is_shown = told is not None and (told["is_leaving"] or told["peer_id"] in self._before)
            if is_shown and not told["anonymous"] and len(kept) < 2 * MAX_SHOWN:
                kept[told["peer_id"]] = SignedRecord(each.key, each.subkey, each.value, each.expiration_time)
        tokens = {peer: token.to_bytes() for peer, token in self._tokens.items() if peer in kept}
        return SignedLook(time=status.time, records=kept, tokens=tokens, not_shown=status.not_shown)


def shown(found: list[PeerStatus], before: Collection[str], most: int = MAX_SHOWN) -> list[PeerStatus]:
    """Return at most so many of the peers, in their order: first those that were shown before, by their ids.

    So a flood of invented peers drives nobody out who was there.
    """
    kept = {peer.peer_id for peer in sorted(found, key=lambda peer: peer.peer_id not in before)[:most]}
    return [peer for peer in found if peer.peer_id in kept]
