"""How one peer behaves; peers of one run may differ in every field here."""

import hashlib
import ipaddress
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from dalle_lib.files import read_record, write_record
from dalle_lib.one_line import is_seen
from dalle_lib.swarm.process.addresses import require_announced
from dalle_lib.swarm.process.lending import LendingSettings, require_lending

MAX_NAME = 64
"""Letters of a peer's name; other peers refuse what a peer with a longer one tells of itself."""

MAX_BATCH, MAX_THREADS = 100_000, 1024
"""Beyond these, a number of samples at a time or of processor threads is a slip of the keyboard."""
ANONYMOUS = "anonymous"
"""What a peer calls itself whose user wants no name told."""
MAX_TEAM = 40
"""Letters of a team's name, at most."""
Role = Literal["trainer", "bootstrap", "observer"]
FIRST_GPU = "first"
"""The device of one of several peers of a machine: the first GPU that works, or else the processor."""
_DEVICE = r"(cpu|(cuda|mps|xpu)(:\d+)?)"
WRITTEN_ANEW = "Remove it: `dalle-lib join` with the peer's name writes it anew."
"""What to do with a broken file of a peer that each of its starts writes."""


@dataclass(frozen=True, kw_only=True)
class CommonSettings:
    """What most volunteers choose."""

    run: str
    """The run to take part in: "emoji-mini", a folder with a run.json, or owner/name on the Hub."""
    name: str = "volunteer"
    """Name of this peer: the others see it, and the peer's folder is called so."""
    team: str = ""
    """The team that your contribution counts for, if any."""
    anonymous: bool = False
    """Have the run's monitor credit you as "anonymous-" and a tag, and tell no name. Peers of the run still see the
    user that your access token names."""
    initial_peers: tuple[str, ...] = ()
    """Addresses of first peers to try besides those of the run card, as the first peers' terminals show them."""
    alone: bool = False
    """Begin the swarm yourself: train though no first peer is known, or none answers. Others can join you."""
    max_minutes: float | None = None
    """Minutes after which the peer leaves, by this machine's clock: pauses and the computer's sleep count. Without it,
    the peer leaves when the run is complete."""
    device: str = "auto"
    """Where the peer computes: "cuda:1", several as in "cuda:0,cuda:1", "cpu", or "auto" for all GPUs that work
    ("first" for the first of them), or else the processor."""


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """How other peers reach this one, and what it is to them."""

    role: Role = "trainer"
    """A trainer computes gradients; a bootstrap peer only helps others to find each other; an observer does so, too,
    and takes the run's state from others now and then, for a monitor."""
    host: str = "0.0.0.0"
    """Address to listen on. 127.0.0.1 keeps everything on this machine."""
    port: int = 0
    """Port to listen on. 0 takes a free one."""
    announce: tuple[str, ...] = ()
    """How others reach this peer, where it is not the address that it listens on: a router that forwards a port, or a
    tunnel, such as /ip4/93.184.216.34/tcp/31337 or /dns4/home.example/tcp/31337."""
    client_mode: bool | None = None
    """Only connect to others, and accept no connections. It averages for nobody, and so sends about half as much.
    Without a word, a peer at its start asks others whether they reach it, and does so where they do not, as behind a
    router or a firewall. --no-client-mode has it average for others, whatever they say."""
    start_after_s: float = 0.0
    """Seconds to wait before joining."""


@dataclass(frozen=True, kw_only=True)
class ComputingSettings:
    """How the peer computes, and in which order."""

    batch_size: int | None = None
    """The most samples between two looks at the swarm, on all devices together. Within this limit the peer finds by
    trying what is fastest here and fits into memory. Without it, a quarter of the peer's part of an epoch, or some
    seconds of computing, are the limit."""
    threads: int | None = None
    """Processor threads for computing, and as many beside each further GPU. Without it there is one for each core, and
    one processor is left for answering other peers."""
    seed: int | None = None
    """Seed of the order in which this peer sees the data. Without it, the seed is made from the peer's id."""


@dataclass(frozen=True, kw_only=True)
class PeerSettings(LendingSettings, ComputingSettings, NetworkSettings, CommonSettings):
    """Settings of one peer. What all peers must share is in the run card.

    The fields are those of four groups, so that the command line can show them in this order, and a monitor's.
    """

    state_every_s: float = 1800.0
    """Seconds between two states that an observer takes from others."""
    keeps_signed: bool = False
    """Whether an observer keeps what peers have signed of each look, for a recording."""

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ValueError(
                f"expected a name of 1 to {MAX_NAME} letters, digits, spaces and signs other than '/', not all of "
                f"them blank, because it is also a folder's, but got {self.name!r}."
            )
        require_team(self.team)
        if not 0 <= self.port < 2**16:
            raise ValueError(f"expected a port from 1 to 65535, or 0 for a free one, but got {self.port}.")
        if not _is_ipv4(self.host):
            raise ValueError(
                "expected an IPv4 address of this machine to listen on, such as 0.0.0.0 (all) or 127.0.0.1 (for this "
                f"machine alone), but got {self.host!r}."
            )
        if not re.fullmatch(rf"auto|{FIRST_GPU}|{_DEVICE}(,{_DEVICE})*", self.device):
            raise ValueError(
                f'expected a device such as "cpu" or "cuda:0", several with commas, or "auto", but got {self.device!r}.'
            )
        gpus = [device if ":" in device else f"{device}:0" for device in self.devices if device != "cpu"]
        if len(set(gpus)) < len(gpus):
            raise ValueError(
                f'expected a device such as "cpu", or several with each GPU once, but got {self.device!r}.'
            )
        if self.role not in get_args(Role):
            raise ValueError(f"expected a role among {', '.join(get_args(Role))}, but got {self.role!r}.")
        if self.max_minutes is not None and not 0 < self.max_minutes < math.inf:
            raise ValueError(
                f"the minutes to take part must be above 0, but are {self.max_minutes}. Leave them out for no limit."
            )
        if not 0 <= self.start_after_s < math.inf:
            raise ValueError(f"the seconds before the start must be at least 0, but are {self.start_after_s}.")
        for name, limit in ("batch_size", MAX_BATCH), ("threads", MAX_THREADS):
            if (given := getattr(self, name)) is not None and not (type(given) is int and 1 <= given <= limit):
                raise ValueError(f"{name} must be a whole number from 1 to {limit:,}, but is {given}.")
        if self.seed is not None and not (type(self.seed) is int and 0 <= self.seed < 2**63):
            raise ValueError(f"seed must be a whole number from 0 to 2**63 - 1, but is {self.seed!r}.")
        require_lending(self)
        require_announced(self.announce)
        if self.announce and self.client_mode:
            raise ValueError("a peer in client mode accepts no connections: leave out either announce or client_mode.")
        if not 0 < self.state_every_s < math.inf:
            raise ValueError(f"state_every_s must be above 0, but is {self.state_every_s}.")
        if self.role == "bootstrap" and self.client_mode:
            raise ValueError("others find each other through a bootstrap peer, so it cannot be in client mode.")

    @property
    def devices(self) -> list[str]:
        """The devices that are named; none for "auto" and "first"."""
        return [] if self.device in ("auto", FIRST_GPU) else self.device.split(",")

    @property
    def begins(self) -> bool:
        """Whether this peer begins a swarm where no first peer answers."""
        return self.alone or self.role == "bootstrap"

    def ends_at(self, began: float) -> float:
        """Return when the minutes of a peer that began then are over, in seconds since 1970; infinity without any."""
        return math.inf if self.max_minutes is None else began + 60 * self.max_minutes

    def data_seed(self, peer_id: str) -> int:
        """Return the seed of the order in which the peer of this id sees the data: the same at each of its starts."""
        return seed_of(peer_id) if self.seed is None else self.seed

    def of_start(self, events: Sequence[dict]) -> "PeerSettings":
        """Return the settings of a start, by its events: a supervisor that starts a peer again has changed some."""
        changed = events[0].get("changed") if events else None
        return replace(self, **changed) if changed else self

    def save(self, file: Path) -> None:
        """Write the settings as JSON."""
        write_record(file, self)

    @classmethod
    def load(cls, file: Path) -> "PeerSettings":
        """Return the settings that `save` wrote. Raises FileNotFoundError or BrokenFile if they cannot be read."""
        return read_record(file, cls._made_of, WRITTEN_ANEW)

    @classmethod
    def _made_of(cls, told: dict) -> "PeerSettings":
        # Versions before them wrote none, nor some others.
        tuples = {name: tuple(told.get(name, ())) for name in ("announce", "between")}
        return cls(**{**told, "initial_peers": tuple(told["initial_peers"]), **tuples})


def seed_of(peer_id: str) -> int:
    """Return the seed of the order in which the peer of an id sees the data, unless it has chosen another."""
    return int.from_bytes(hashlib.sha256(peer_id.encode()).digest()[:8], "little") >> 1


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def require_team(team: str) -> None:
    """Return None if a team can be called so, or none is named. Raises ValueError otherwise."""
    if team and not (is_name(team) and len(team) <= MAX_TEAM):
        raise ValueError(
            f"expected a team of at most {MAX_TEAM} letters, digits, spaces and signs other than '/', not all of them "
            f"blank, but got {team!r}."
        )


def is_name(name: str) -> bool:
    """Return whether a peer can be called so: its name is a folder of its own in the folder of its run."""
    is_line = len(name) <= MAX_NAME and name.isprintable() and is_seen(name)
    return is_line and "/" not in name and name.strip() not in (".", "..")
