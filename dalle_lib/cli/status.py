"""`dalle-lib status`."""

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dalle_lib.files import BrokenFile, read_record
from dalle_lib.one_line import in_one_line, told
from dalle_lib.swarm.process.events import EVENTS
from dalle_lib.swarm.process.folder import PEERS, SETTINGS
from dalle_lib.swarm.process.listed import peers_of

if TYPE_CHECKING:
    from dalle_lib.swarm import Peer

Told = TypeVar("Told")
TEAMS = 5
"""Teams of a run that are told."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """Show how your peers on this machine stand.

    It shows each with its run, epoch, state and folder: peers that run or have ended by an error, in whichever folder,
    and peers that have left, of the folder `peers` here. It starts, stops and changes nothing. Where a file of a peer
    is broken, it says which, and what to do. A monitor's peer comes with the run's first teams. For example:

    dalle-lib status

    dalle-lib status --folder monitor

    dalle-lib status --folder peers/emoji-mini --json
    """

    folder: Path | None = None
    """Folder in which peers were started: only those in it are shown. It may be another user's."""
    json: bool = False
    """Print one JSON document on standard output."""

    def run(self) -> None:
        """Print how each peer stands."""
        from dalle_lib.swarm import Peer

        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"expected a folder of peers, but {self.folder} is a file: name another --folder.")
        peers = [Peer(folder) for folder in peers_of(self.folder, say=partial(print, file=sys.stderr))]
        if self.json:
            print(json.dumps([_told(peer, as_dict, broken_as_dict) for peer in peers], indent=1))
        elif peers:
            told_of = [_told(peer, describe_peer, describe_broken) for peer in peers]
            print("\n\n".join([*told_of, *([told(line)] if (line := month_line(peers)) else [])]))
        else:
            nobody = "No peer of yours runs on this machine, and none" if self.folder is None else "No peer"
            print(
                f"{nobody} has run in {self.folder or PEERS} yet. Go to the folder in which you typed `dalle-lib "
                "join`, or name it: --folder PATH/peers."
            )


def month_line(peers: list["Peer"]) -> str:
    """Return this month's traffic of all peers here, of the lowest limit of those that run, as a line; "" for none."""
    from dalle_lib.swarm.process.month import used_in_words
    from dalle_lib.swarm.process.settings import PeerSettings

    limits = []
    for peer in peers:
        with suppress(BrokenFile, OSError):  # what is told of that peer says so
            if peer.is_running:
                limits.append(PeerSettings.load(peer.folder / SETTINGS).monthly_gb)
    return used_in_words(min((limit for limit in limits if limit is not None), default=None))


def _told(peer: "Peer", tell: Callable[["Peer"], Told], tell_broken: Callable[["Peer", str], Told]) -> Told:
    """Return what `tell` says of a peer; or, where its files do not let it, what `tell_broken` says, given why."""
    try:
        return tell(peer)
    except BrokenFile as error:
        return tell_broken(peer, in_one_line(error))
    except OSError as error:  # it names its file
        remedy = "Ask its owner to let you" if isinstance(error, PermissionError) else "Move that file away"
        return tell_broken(peer, f"{in_one_line(error)}. {remedy}.")
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        why = (
            f"{peer.folder / EVENTS} holds an event that this version of the kit does not write "
            f"({type(error).__name__}: {in_one_line(error)}). Move that file away: only what it tells is lost."
        )
        return tell_broken(peer, why)


def describe_broken(peer: "Peer", why: str) -> str:
    """Return the lines for a peer of whom a file is broken: why no more is known, and a link to what that means."""
    return "\n  ".join(map(told, [f"{peer.folder.name}: {why}", *_meanings(why)]))


def broken_as_dict(peer: "Peer", why: str) -> dict:
    """Return what `as_dict` does, for a peer of whom a file is broken: where it is, and why no more is known."""
    told = {"name": peer.folder.name, "state": None, "error": why, "links": _links(why)}
    return told | {"folder": str(peer.folder)}


def describe_peer(peer: "Peer") -> str:
    """Return how a peer stands, in lines: its state, what matters of it if it has trained, since when and where.

    Below are a monitor's teams, and links to what its state and its last troubles mean, where docs/troubleshooting.md
    has an entry.
    """
    from dalle_lib.amounts import duration, moment
    from dalle_lib.dashboard.lately import troubles
    from dalle_lib.dashboard.words import helped_line, line_of, proof_line, state_in_words
    from dalle_lib.swarm.process.standing import Standing

    standing = Standing.of(peer)
    ago = duration(max(0.0, time.time() - standing.since))
    line = line_of(standing) if standing.epoch is not None else ""
    state = state_in_words(standing)
    lines = [
        f"{standing.name} in {standing.run}: {state}",
        helped_line(standing) if standing.state == "helping" and standing.swarm is not None else line,
        f"since {moment(standing.since)}, {ago} ago, in {peer.folder}",
        proof_line(standing) or "",
    ]
    if standing.role == "observer":
        lines.append(teams_in(peer.folder.parent))
    wrong = troubles(peer.events(), standing.swarm)
    lines += [*wrong, *_meanings(state, *wrong)]
    return "\n  ".join(told(line) for line in lines if line)


def teams_in(folder: Path) -> str:
    """Return the first teams of the run that the monitor in a folder follows, as a line; "" where it tells of none."""
    from dalle_lib.amounts import count, duration
    from dalle_lib.run.newest import STATUS, TEAM_COLUMNS

    try:
        status = read_record(folder / STATUS, dict, "The monitor writes it anew.")
        teams = [dict(zip(TEAM_COLUMNS, row, strict=True)) for row in status["teams"][:TEAMS]]
        named = [
            f"{team['rank']}. {team['team']} ({duration(team['compute_s'])}, {count(team['members'], 'member')})"
            for team in teams
        ]
        more = status["totals"]["teams"] - len(named)
    except (FileNotFoundError, BrokenFile, LookupError, TypeError, ValueError):
        return ""
    return f"teams: {', '.join([*named, *([f'{more:,} more'] if more > 0 else [])])}" if named else ""


def as_dict(peer: "Peer") -> dict:
    """Return how a peer stands, for JSON. Times are seconds since 1970, what is not known is null."""
    from dalle_lib.dashboard.lately import troubles
    from dalle_lib.dashboard.words import state_in_words
    from dalle_lib.swarm.process.standing import Standing

    standing = Standing.of(peer)
    wrong = troubles(peer.events(), standing.swarm)
    words = state_in_words(standing)
    told = asdict(standing) | {"words": words, "troubles": wrong, "links": _links(words, *wrong)}
    return told | {"folder": str(peer.folder), "is_running": peer.is_running, "month": month_as_dict()}


def month_as_dict() -> dict | None:
    """Return the bytes that all peers of this machine have sent and received this month; None if that is not known."""
    from dalle_lib.swarm.process.month import Months

    try:
        return asdict(Months().used())
    except (BrokenFile, OSError):
        return None


def _meanings(*messages: str) -> list[str]:
    return [f"What it means: {link}" for link in _links(*messages)]


def _links(*messages: str) -> list[str]:
    """Return the addresses of what these messages mean, each once."""
    from dalle_lib.troubles import trouble_in

    return list(dict.fromkeys(trouble.link for trouble in map(trouble_in, messages) if trouble is not None))
