"""What one volunteer has in a run: a peer, or all peers of a swarm on this machine."""

import importlib.util
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dalle_lib.files import require_writable
from dalle_lib.run import RunCard
from dalle_lib.run.state import require_open
from dalle_lib.swarm.process.addresses import of_others, require_addresses, require_port, those_that_answer
from dalle_lib.swarm.process.folder import folders_of_peers, own_id, require_own
from dalle_lib.swarm.process.join import STOP_TIMEOUT_S, Peer, PeerFailed, join
from dalle_lib.swarm.process.met import addresses_met
from dalle_lib.swarm.process.settings import PeerSettings

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.1
"""Seconds between looks at whether a peer still runs."""


@dataclass
class Crew:
    """Peers that were started together, by name."""

    folder: Path
    run: str
    """Value of `PeerSettings.run` for peers that join this run."""
    peers: dict[str, Peer] = field(default_factory=dict)

    def ask_to_stop(self) -> None:
        """Ask all peers to leave, and return at once."""
        for peer in self.peers.values():
            peer.ask_to_stop()

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when all peers have ended: when the run is complete, when they are stopped, or when they fail.

        A failure is logged at once. Raises PeerFailed for it when the others have ended too, or if a peer still runs
        after `timeout_s` seconds; None waits without a limit.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        running, failures = dict(self.peers), []
        while True:
            for name in [name for name, peer in running.items() if not peer.is_running]:
                try:
                    running.pop(name).wait()
                except PeerFailed as failure:
                    failures.append(failure)
                    logger.error("the peer %s failed: %s", name, failure)
            if not running:
                break
            if time.monotonic() > deadline:
                (name, peer), *_ = running.items()
                raise PeerFailed(f"the peer {name} still runs after {timeout_s:g} s. Its log ends:\n{peer.log_tail()}")
            time.sleep(LOOK_EVERY_S)
        if failures:
            raise failures[0]

    def close(self, timeout_s: float | None = STOP_TIMEOUT_S) -> None:
        """Make all peers leave, and return when they have. Raises PeerFailed as `wait` does."""
        self.ask_to_stop()
        self.wait(timeout_s)


def join_run(settings: PeerSettings, folder: str | Path, token: str | None = None, *, by_token: bool = False) -> Crew:
    """Join a run of others with a peer that computes on all GPUs that work, or on the processor where there is none.

    It has a folder of its own in `folder`, called after it, where it keeps its progress and from where it goes on next
    time. `token` is a Hub token, for private runs.

    Where the card names the server of the run's authority, a link and a code are printed if the peer has no access
    token, and this waits until you have proved there who you are; `by_token` shows `token` to the authority instead.

    Before the peer is started, this raises RunClosed, a ValueError, if the run is paused or finished; ValueError if
    there is no such run, the folder belongs to another run, the run's data are not beside its card, an address is
    malformed, or there is no first peer and the settings do not say `alone`; ConnectionError if the port is in use, or
    none of the first peers answers and the settings neither say `alone` nor are a bootstrap peer's; and RuntimeError
    without hivemind. Where the authority refuses the peer, it raises NotAdmitted, a ValueError.
    """
    if by_token and not token:
        raise ValueError("expected a Hub token that proves who you are: give it as `token`.")
    card = RunCard.load(settings.run, token)
    require_way_in(settings, card, folder)
    return start_crew(settings, card, folder, token, proof=token if by_token else None)


def start_crew(
    settings: PeerSettings, card: RunCard, folder: str | Path, token: str | None = None, proof: str | None = None
) -> Crew:
    """Start the peer of `join_run`, after `require_way_in`, in the run of `card`. Loads no torch.

    `proof` is a Hub token that is shown to the run's authority.
    """
    folder = Path(folder).resolve()
    own = folder / settings.name
    require_own(own, card)
    if card.members is not None and card.members.server is not None and not Peer(own).is_running:
        from dalle_lib.swarm.process.proof import prove_identity  # loads huggingface_hub's HTTP client

        prove_identity(card, own, proof, is_bootstrap=settings.role != "trainer")
    return Crew(folder, settings.run, {settings.name: join(settings, own, token, card)})


def running_in(folder: str | Path) -> list[str]:
    """Return the names of the peers that run in `folder`, which is a run's."""
    return [each.name for each in folders_of_peers(Path(folder)) if Peer(each).is_running]


def require_way_in(
    settings: PeerSettings, card: RunCard, folder: str | Path, say: Callable[[str], None] = logger.info
) -> None:
    """Raise the errors of `join_run` if no peer with these settings could take part from `folder`. Loads no torch.

    `say` is told if none of the first peers answers: a peer that this one has met before may, or else it begins a
    swarm, if it may. Its own addresses count nowhere.
    """
    require_own(Path(folder) / settings.name, card)
    if Peer(Path(folder) / settings.name).is_running:
        return
    if settings.role == "trainer":  # first peers serve those who are there, also while nobody else may join
        require_open(card)
    require_writable(Path(folder) / settings.name, "--folder")
    if importlib.util.find_spec("hivemind") is None:
        raise RuntimeError('a peer needs hivemind, which is not installed: pip install "dalle-lib[swarm]"')
    addresses = [*card.initial_peers, *settings.initial_peers]
    require_addresses(addresses)
    own = own_id(Path(folder) / settings.name)
    addresses, met = of_others(addresses, own), of_others(addresses_met(Path(folder) / settings.name), own)
    if not addresses and not met and not settings.begins:
        here = running_in(folder)
        nearby = f" {here[0]} takes part in it on this machine, and its terminal shows its address." if here else ""
        so, otherwise = ", so this peer would train by itself", ", or --alone if you are the first"
        if settings.role != "trainer":  # a monitor's peer begins nothing
            so, otherwise = "", ""
        raise ValueError(
            f"no address of another peer of {settings.run} is known{so}. Add --initial-peers with the address that the "
            f"run's organiser gives you{otherwise}.{nearby}"
        )
    if settings.role == "trainer":
        card.require_beside()
    require_port(settings.host, settings.port)
    answering, why = those_that_answer(addresses)
    if (addresses or met) and not answering:
        met_answering, why_met = those_that_answer(met)
        if met_answering:
            say(f"None of the first peers of {settings.run} answers, but one does that {settings.name} has met before.")
            return
        why = why or why_met
        if settings.begins:
            say(
                f"None of the first peers of {settings.run} answers ({why}): {settings.name} begins the swarm, and "
                "looks for them again and again."
            )
            return
        raise ConnectionError(
            f"none of the first peers of {settings.run} answers ({why}). Is this machine online, does the run still go "
            "on, and is this the address that its organiser gives now? "
            "`dalle-lib doctor` with the same options tells more."
        )
