"""`dalle-lib join`."""

import shlex
import shutil
import signal
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dalle_lib.amounts import count
from dalle_lib.cli.peer_options import Options
from dalle_lib.one_line import printable
from dalle_lib.swarm.process.folder import PEERS, SETTINGS
from dalle_lib.swarm.process.lending import LendingSettings
from dalle_lib.swarm.process.settings import FIRST_GPU, PeerSettings
from dalle_lib.swarm.process.threads import threads_of

if TYPE_CHECKING:
    from dalle_lib.run import RunCard
    from dalle_lib.swarm import Peer


@dataclass(frozen=True, kw_only=True)
class Join:
    """Take part in a run from this terminal, on all your GPUs, until it is complete or you press Ctrl+C.

    For example, a run that others have begun, one that you begin with friends, and a peer that only helps to find it:

    dalle-lib join --run owner/name --name ada

    dalle-lib join --run emoji-mini --name ada --alone --port 31337

    dalle-lib join --run owner/name --name meeting-point --role bootstrap --port 31337
    """

    peer: Options
    folder: Path = PEERS
    """Where progress is kept: a folder for each run, and in it one for each peer. A peer goes on from what is there."""
    hub_token: bool = False
    """Where a run asks who you are, prove it by your Hub token and not in a browser. The token is that of your login,
    of the platform's secrets or of HF_TOKEN; where there is none, you are asked for it. The run's authority sees it."""

    refresh_card: bool = False
    """For a bootstrap peer of your own run: keep the addresses of first peers in its card right, its own and those of
    others that answer. Needs a Hub token that may write there, or a run in a folder."""

    def run(self) -> None:
        """Start the peer, and show its progress until it ends; or watch the one that runs there already."""
        from dalle_lib.run.files import card_here
        from dalle_lib.swarm.process.addresses import require_addresses

        if self.refresh_card and self.peer.role != "bootstrap":
            raise ValueError(
                "expected --refresh-card with --role bootstrap alone: trainers are no first peers of a run."
            )
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl+C: a container ends with this program
        refuse_folder_of_peer(self.peer.run)
        card_here(self.peer.run)
        require_addresses(self.peer.initial_peers)
        print(f"Joining {self.peer.run} as {self.peer.name} ...", flush=True)  # what follows may ask the Hub

        from dalle_lib.cli.invitation import invitation
        from dalle_lib.dashboard.run_view import RunView
        from dalle_lib.dashboard.watching import watch
        from dalle_lib.run import RunCard, hub_token_for
        from dalle_lib.swarm import Peer
        from dalle_lib.swarm.process.crew import require_way_in, start_crew
        from dalle_lib.swarm.process.folder import crew_folder, require_own

        token = hub_token_for(self.peer.run)
        card = RunCard.load(self.peer.run, token)
        folder = crew_folder(self.folder, card, self.peer.name)
        peer = Peer(folder / self.peer.name)
        require_own(peer.folder, card)
        if peer.is_running:
            print(f"This peer runs already, in {peer.folder}.")
            settings = PeerSettings.load(peer.folder / SETTINGS)
            watch(peer, invite=partial(invitation, settings, card), view=RunView(card))
            return
        if not is_complete(peer, card):
            require_way_in(self.peer, card, folder, say=partial(print, flush=True))
            print(_fitted(beginning(card, self.peer, peer, is_old=folder == self.folder)), flush=True)
            proof = proving_token() if self.hub_token and card.members and card.members.server else None
            with self._refreshing(peer, token):
                crew = start_crew(self.peer, card, folder, token, proof)
                watch(crew.peers[self.peer.name], invite=partial(invitation, self.peer, card), view=RunView(card, crew))
                crew.close()
        print(_fitted(ending(peer, self, card)))

    def _refreshing(self, peer: "Peer", token: str | None) -> AbstractContextManager[None]:
        """Return what keeps the card right while it is open, if that was asked for."""
        if not self.refresh_card:
            return nullcontext()
        from dalle_lib.organizing.refreshing import refreshing_card

        return refreshing_card(self.peer.run, peer, token, partial(print, flush=True))

    def as_typed(self) -> list[str]:
        """Return this command as a volunteer types it: with the options whose values are not the defaults."""
        given = {"run": self.peer.run}
        for option in (*fields(self.peer), *fields(self)):
            value = getattr(self.peer if hasattr(self.peer, option.name) else self, option.name)
            if option.name != "peer" and value != option.default:
                given[option.name] = value
        words = ["dalle-lib", "join"]
        for name, value in given.items():
            values = [] if type(value) is bool else map(str, value) if isinstance(value, tuple) else [str(value)]
            words += [f"--{'no-' if value is False else ''}{name.replace('_', '-')}", *values]
        return words


def proving_token() -> str:
    """Return the volunteer's Hub token, typed if it is nowhere. Raises ValueError if nobody can be asked."""
    from getpass import getpass

    from dalle_lib.platforms import hub_token

    if token := hub_token():
        return token
    if not sys.stdin.isatty():
        raise ValueError("expected a Hub token, but there is none: log in with `hf auth login`, or set HF_TOKEN.")
    return getpass("Your Hub token (of type read; it is not shown and not kept): ").strip()


def refuse_folder_of_peer(run: str) -> None:
    """Raise ValueError if this is the folder of a peer, which only drawing takes for a run, and say how it goes on."""
    from dalle_lib.run.files import CARD

    folder = Path(run)
    if (folder / SETTINGS).is_file() and not (folder / CARD).is_file():
        typed = shlex.join(Join(peer=PeerSettings.load(folder / SETTINGS)).as_typed())
        raise ValueError(f"expected a run, but {run} is the folder of a peer. It goes on by: {typed}")


def _fitted(text: str) -> str:
    """Return a text as this terminal shows it best; a file or a pipe gets it as it is."""
    from dalle_lib.dashboard.terminal import fitted

    return fitted(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text


def beginning(card: "RunCard", settings: PeerSettings, peer: "Peer", *, is_old: bool) -> str:
    """Return what a volunteer is about to take part in, where its progress is kept, and within which limits.

    `is_old` says that an earlier version of the kit has kept this peer's progress where it is.
    """
    from dalle_lib.run.sizes import size_of
    from dalle_lib.swarm.process.crew import running_in
    from dalle_lib.swarm.process.folder import saved_epoch

    epoch, epochs = saved_epoch(peer.folder), card.optimizer.total_epochs
    kept = "" if epoch is None else f", going on from epoch {epoch}"
    old = " (where an earlier version kept it)" if is_old else ""
    lines = [
        f"Run:     {card.name}, {size_of(card)}; {epochs} epochs of {card.averaging.target_batch_size:,} samples.",
        f"Folder:  {peer.folder}{old}{kept}.",
        f"Limits:  {limits(settings)}.",
    ]
    if card.message:
        lines.append(f"Says:    {card.message}")
    # A bootstrap peer that comes back has the address that it had, so the others find it again.
    if settings.alone and settings.role == "trainer" and (here := running_in(peer.folder.parent)):
        lines.append(
            f"Apart:   {here[0]} takes part in this run on this machine, and --alone begins a second swarm that does "
            "not meet it. To join it instead, use the line that its terminal shows after Friends."
        )
    return "\n".join(lines)


def limits(settings: PeerSettings) -> str:
    """Return what a peer may use, and when it leaves."""
    minutes, helps = settings.max_minutes, settings.role != "trainer"
    end = "until you press Ctrl+C" if helps else "until the run is complete"
    told = [end if minutes is None else f"it leaves after {minutes:g} minutes"]
    if helps:
        return told[0]
    if settings.start_after_s:
        told.append(f"it starts after {settings.start_after_s:g} s")
    if settings.duty < 1:
        told.append(f"it computes {settings.duty:.0%} of the time")
    if settings.between:
        told.append(f"between {' and '.join(settings.between)} only")
    if settings.only_when_idle:
        told.append("while other programs are idle")
    if settings.not_on_battery:
        told.append("not on battery")
    if settings.gpu_share < 1 and settings.device != "cpu":
        told.append(f"with at most {settings.gpu_share:.0%} of a GPU's memory")
    if settings.batch_size is not None:
        told.append(f"at most {count(settings.batch_size, 'sample')} at a time")
    if settings.niceness != LendingSettings.niceness:
        told.append(f"at niceness {settings.niceness}")
    if settings.max_upload_mbps is not None:
        told.append(f"sending at most {settings.max_upload_mbps:g} Mbit/s")
    if settings.monthly_gb is not None:
        told.append(f"until all your peers on this machine have had {settings.monthly_gb:g} GB of traffic in a month")
    threads = count(threads_of(settings), "processor thread")
    if settings.device == "auto":
        told.append(f"on all GPUs, or on {threads} where there is none")
    elif settings.device == FIRST_GPU:
        told.append(f"on the first GPU, or on {threads} where there is none")
    else:
        told.append(f"on {threads}" if settings.device == "cpu" else f"on {settings.device}")
    return ", ".join(told)


def is_complete(peer: "Peer", card: "RunCard") -> bool:
    """Return whether the run's last epoch is saved in a peer's folder, so that there is nothing left to train."""
    from dalle_lib.swarm.process.folder import saved_epoch

    epoch = saved_epoch(peer.folder)
    return epoch is not None and epoch >= card.optimizer.total_epochs


def ending(peer: "Peer", command: Join, card: "RunCard") -> str:
    """Return what a volunteer wants to know at the end: what they gave in all, where the model is, what to do next."""
    from dalle_lib.dashboard.words import state_in_words, totals_in_words
    from dalle_lib.swarm.process.folder import MODEL
    from dalle_lib.swarm.process.receipt import receipt_of
    from dalle_lib.swarm.process.standing import Standing

    if command.peer.role != "trainer":
        return "This peer has left: newcomers no longer find the others through it."
    standing = Standing.of(peer)
    lines = [f"{state_in_words(standing)}.", f"Yours:   {totals_in_words(standing)}."]
    if standing.epoch and (peer.folder / MODEL).exists():
        lines.append(f"Model:   {peer.folder / MODEL}")
        draw = ["dalle-lib", "generate", prompt_for(card), "--run", str(peer.folder)]
        lines.append(f"Draw:    {shlex.join(draw)}")
    with suppress(ValueError, FileNotFoundError):  # nothing of it has counted with others
        receipt_of(peer)
        lines.append(f"Receipt: {shlex.join(['dalle-lib', 'receipt', '--folder', str(peer.folder)])}")
    if not standing.is_complete:
        lines.append(f"Go on:   {shlex.join(command.as_typed())}")
    return "\n".join(lines)


def prompt_for(card: "RunCard") -> str:
    """Return a caption that the model of a run has trained on; a reminder where its data are elsewhere."""
    from huggingface_hub.utils import disable_progress_bars

    from dalle_lib.inference.captions import TrainingCaptions

    disable_progress_bars()  # the data are here: the peer has read them
    known = TrainingCaptions.of(card)
    return "your prompt" if known is None or not known.captions else printable(known.captions[0])
