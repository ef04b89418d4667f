"""Keeps the first peers in a run's card right while a bootstrap peer runs: its own addresses, and who else is there."""

import ipaddress
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dalle_lib.one_line import in_one_line
from dalle_lib.organizing.editing import change_run
from dalle_lib.run import EMBEDDED_RUNS, RunCard
from dalle_lib.run.files import card_here
from dalle_lib.swarm.process.addresses import is_address, peer_in, those_that_answer
from dalle_lib.swarm.process.join import Peer

LOOK_EVERY_S = 60.0
"""Seconds between two looks at the card and at who answers."""
CHANGE_EVERY_S = 300.0
"""Seconds between two changes of the card, each a commit on the Hub, and after an attempt that failed."""
GONE_S = 24 * 3600.0
"""Seconds of silence after which the address of another first peer is taken out of the card."""


@contextmanager
def refreshing_card(run: str, peer: Peer, token: str | None, say: Callable[[str], None]) -> Iterator[None]:
    """Keep the card of a run right while the block runs, by what the bootstrap peer `peer` tells of itself.

    `run` is a folder or owner/name on the Hub; `token` a Hub token that may write there. `say` is told each change, and
    why one could not be made, which is tried again. Raises ValueError if the card can be changed by nobody, or not so.
    """
    if run in EMBEDDED_RUNS:
        raise ValueError(f"expected a run of yours to refresh its card, but {run} is part of the kit.")
    if card_here(run) is None and token is None:
        raise ValueError(
            f"expected a Hub token that may change the card of {run}, but there is none: log in with `hf auth login`, "
            "or set HF_TOKEN."
        )
    stop = threading.Event()
    refresher = CardRefresher(run, peer, token, say)
    threading.Thread(target=_refresh, args=(refresher, stop), daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def _refresh(refresher: "CardRefresher", stop: threading.Event) -> None:
    wait_s = 1.0
    while not stop.wait(wait_s):
        wait_s = refresher.look()


class CardRefresher:
    """Looks at the card and at who answers, and changes the card where it is wrong."""

    def __init__(self, run: str, peer: Peer, token: str | None, say: Callable[[str], None]) -> None:
        self.run, self.peer, self._token, self._say = run, peer, token, say
        self._heard: dict[str, float] = {}

    def look(self) -> float:
        """Look once, and return the seconds until the next time."""
        connected = [event for event in self.peer.events() if event["event"] == "connected" and event["addresses"]]
        if not connected:
            return 1.0  # it still starts
        own = connected[-1]["addresses"]
        try:
            before = RunCard.load(self.run, self._token).initial_peers
            gone = self._gone(before, peer_in(own[0]))
            if right_addresses(before, own, gone) == before:
                return LOOK_EVERY_S
            # Others may change the card meanwhile, as first peers do that were started at once.
            card = change_run(
                self.run,
                lambda now: {"initial_peers": right_addresses(now.initial_peers, own, gone)},
                self._token,
            )
        except (ValueError, OSError) as error:
            self._say(f"The card of {self.run} was not refreshed, and will be tried again: {in_one_line(error)}")
        else:
            self._say(f"The card of {self.run} names as first peers now: {', '.join(card.initial_peers)}")
        return CHANGE_EVERY_S

    def _gone(self, addresses: Sequence[str], own_id: str) -> set[str]:
        """Return those of these addresses of other peers at which nobody has answered for GONE_S."""
        others, now = [each for each in addresses if is_address(each) and peer_in(each) != own_id], time.monotonic()
        answering, _ = those_that_answer(others)
        self._heard = {address: now if address in answering else self._heard.get(address, now) for address in others}
        return {address for address, at in self._heard.items() if now - at >= GONE_S}


def right_addresses(card: Sequence[str], own: Sequence[str], gone: set[str]) -> tuple[str, ...]:
    """Return the first peers that a card should name: those in it without `gone`, and this peer, which is at `own`.

    Of its own addresses, those that reach furthest are named: public ones, or else its network's, or its machine's.
    What the card has of it and reaches further stays: a name, whose address may change, or the public address of a
    router, behind which the peer knows only private ones. What is no address goes: with it, nobody could join.
    """
    own_id, reach = peer_in(own[0]), max(map(_reach, own))
    known = [address for address in card if is_address(address)]
    further = [address for address in known if peer_in(address) == own_id and _reach(address) > reach]
    mine = further or [address for address in own if _reach(address) == reach]
    others = [address for address in known if peer_in(address) != own_id and address not in gone]
    right = tuple(dict.fromkeys([*mine, *others]))
    return tuple(card) if set(right) == set(card) else right


def _reach(address: str) -> int:
    """Return how far away an address can be used: a name 3, a public one 2, a network's 1, a machine's 0."""
    found = re.match("/ip[46]/([^/]+)/", address)
    if found is None:
        return 3
    host = ipaddress.ip_address(found[1])
    return 2 if host.is_global else 0 if host.is_loopback else 1
