"""The stage of a rehearsal: a run on this machine, with an authority of its own and a slow link for each peer."""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from dalle_lib.auth import Authority, HubAuthorizer
from dalle_lib.auth.keys import PeerKey
from dalle_lib.auth.server.banning import ban
from dalle_lib.auth.server.settings import Folder, RunSettings, ServerSettings
from dalle_lib.auth.tokens import TOKEN, Role
from dalle_lib.organizing.keys import MONITOR
from dalle_lib.rehearsal.links import Link, Plug, Relay
from dalle_lib.rehearsal.watching import Kept, Watch
from dalle_lib.run import RunCard
from dalle_lib.run.parts import MembersCard
from dalle_lib.swarm import Peer, PeerFailed, PeerSettings, join
from dalle_lib.swarm.process.folder import IDENTITY
from dalle_lib.swarm.process.local import LOCALHOST

FIRST_PEER, STRANGER, ORGANIZATION = "first-peer", "stranger", "the-organisation"
KEYS = timedelta(days=1)
"""How long the rehearsal's signing key counts."""
JOINS = 10**6
"""Attempts in a minute from one address: all volunteers have this machine's."""
BANS_EVERY_S = 15
"""Seconds between a peer's looks for bans: shorter than in a run, as a rehearsal lasts only minutes."""
SERVER_LINK = Link(up_mbps=1000, down_mbps=1000)
"""Link of the first peer, which is a rented machine's."""


@dataclass(frozen=True, kw_only=True)
class Act:
    """Something that was done to the run, at `time` in seconds since 1970; `told` are the words that came of it."""

    what: str
    name: str
    time: float
    told: str = ""


class Stage:
    """The run of a card with fresh keys, played by volunteers of these names until `close`, which ends all processes.

    `link` is that of each volunteer. Everybody but the stranger is a member. The true run is not touched.
    """

    def __init__(
        self, card: RunCard, folder: Path, names: tuple[str, ...], link: Link, token: str | None = None
    ) -> None:
        self.folder, self.acts = folder.resolve(), list[Act]()
        self.peers: dict[str, Peer] = {}
        self.has_hub = not any(source.startswith("hf://") for source in (card.data.train, card.data.held_out))
        """Whether the stand-in takes the Hub's place for all: where the data are on the true one, peers need that."""
        self.token = None if self.has_hub else token
        with ExitStack() as stack:
            card = RunCard.load(card.save(self.folder / "run"), token)  # as long as the Hub is the true one
            self._open_evening(stack, card, names)
            relay = stack.enter_context(Relay())
            self.plugs: Mapping[str, Plug] = {
                FIRST_PEER: relay.plug(SERVER_LINK), **{name: relay.plug(link) for name in names}
            }  # fmt: skip
            members = self._open_authority(card, names) if card.members is not None else None
            first = PeerKey.load_or_create(self._place(FIRST_PEER) / IDENTITY).peer_id
            address = f"{self.plugs[FIRST_PEER].announced_at}/p2p/{first}"
            kept = f"{ORGANIZATION}/checkpoints" if self.has_hub else None
            own = card.with_changes(members=members, initial_peers=(address,), state="open", checkpoints=kept)
            self.card = RunCard.load(own.save(self.folder / "run"))
            if members is not None:
                self._serve()
            stack.callback(self._end_peers)
            self.enter(PeerSettings(run="", name=FIRST_PEER, role="bootstrap"))
            self.peers[FIRST_PEER].wait_for("connected")
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Make all peers leave, and end everything."""
        self._stack.close()

    def watch(self, minutes: float) -> None:
        """Start the run's monitor, which ends with this."""
        place = self.folder / "monitor" / MONITOR
        if self.card.members is not None:
            self._prove(MONITOR, place)
        token = self._evening.tokens[MONITOR] if self.has_hub else self.token
        self._watch = Watch(self.folder / "run", self.folder, minutes, token)
        self._stack.callback(self._watch.end)

    def let_all_leave(self, began: float) -> Kept:
        """Make all peers leave, and then the monitor; return what that has kept since the first epoch."""
        self._end_peers()
        self._watch.end()
        volunteers = {name: peer for name, peer in self.peers.items() if name != FIRST_PEER}
        return self._watch.kept(volunteers, began, self.has_hub)

    def enter(self, settings: PeerSettings) -> None:
        """Start a peer behind its link; where the run has members, it first proves who it is by a link and a code.

        Raises NotAdmitted if the authority refuses.
        """
        name, plug = settings.name, self.plugs.get(settings.name)
        self.acts.append(Act(what="enters", name=name, time=time.time()))
        if self.card.members is not None and not (self._place(name) / TOKEN).exists():
            self._prove(name, self._place(name))
        if plug is None:
            return
        reached = {} if settings.client_mode else {"port": plug.listens_on, "announce": (plug.announced_at,)}
        behind = PeerSettings(**{**vars(settings), "run": str(self.folder / "run"), "host": LOCALHOST, **reached})
        self.peers[name] = join(behind, self._place(name), self.token, self.card)
        plug.process = self.peers[name].supervisor_id

    def let_ask(self, name: str) -> None:
        """Let somebody ask for admission without a peer, and note what they are told."""
        asked = time.time()
        try:
            self.enter(PeerSettings(run="", name=name))
            told = ""
        except ValueError as refused:
            told = str(refused)
        self.acts[-1] = Act(what="is refused" if told else "is admitted", name=name, time=asked, told=told)

    def kill(self, name: str) -> None:
        """Kill a volunteer's processes as a power cut does."""
        self.acts.append(Act(what="is killed", name=name, time=time.time()))
        with suppress(ProcessLookupError):
            os.killpg(self.peers[name].events()[0]["pid"], signal.SIGKILL)
        with suppress(PeerFailed):  # killed, which its supervisor says
            self.peers[name].wait(timeout_s=60)

    def leave(self, name: str) -> None:
        """Ask a volunteer to leave."""
        self.acts.append(Act(what="leaves", name=name, time=time.time()))
        self.peers[name].ask_to_stop()

    def ban(self, name: str) -> None:
        """Ban a volunteer, as `dalle-lib auth-server ban` does."""
        at = time.time()
        ban(self._authority.path, name, "rehearsed")
        self.acts.append(Act(what="is banned", name=name, time=at))

    def _prove(self, name: str, place: Path) -> None:
        """Let a person prove to the authority who they are, by a link and a code."""
        self._evening.sign_in(name)
        HubAuthorizer(self.card, PeerKey.load_or_create(place / IDENTITY), place, name).prove_by_code(
            lambda _code: None
        )

    def _place(self, name: str) -> Path:
        return self.folder / "peers" / name

    def _open_evening(self, stack: ExitStack, card: RunCard, names: tuple[str, ...]) -> None:
        """Make people and a stand-in for the Hub, where the monitor may write."""
        from dalle_lib.rehearsal.evening import Evening  # the extra server

        own = [(card.members and card.members.organization) or ORGANIZATION, ORGANIZATION]
        people = dict.fromkeys((FIRST_PEER, MONITOR, *names), own)
        self._evening = Evening(self.folder / "evening", people | {STRANGER: ["elsewhere"]}, is_here=self.has_hub)
        stack.callback(self._evening.close)

    def _open_authority(self, card: RunCard, names: tuple[str, ...]) -> MembersCard:
        """Make an authority with fresh keys, and return what the run's card says of it."""
        from dalle_lib.rehearsal.evening import free_place

        organization = card.members.organization or ORGANIZATION
        root, self._authority = Authority.generate(), Folder(self.folder / "authority")
        key = self._authority.key(card.name)
        key.parent.mkdir(parents=True, mode=0o700)
        root.delegate(card.name, KEYS).save(key)
        vouched = dict.fromkeys((FIRST_PEER, names[0]), Role.VOUCHED)
        run = RunSettings(card=str(self.folder / "run"), roles=vouched)
        limits = {"joins_per_minute": JOINS, "requests_per_minute": JOINS, "bans_every_s": BANS_EVERY_S}
        self._authority.save(ServerSettings(runs=(run,), **limits))
        own = {"authority": root.public_key, "server": f"http://{free_place()}", "organization": organization,
               "client_id": card.members.client_id or "rehearsal"}  # fmt: skip
        return MembersCard(**card.members.model_dump() | own)

    def _serve(self) -> None:
        self._evening.serve(self._authority.path, self.card.members.server)

    def _end_peers(self) -> None:
        for peer in self.peers.values():
            peer.ask_to_stop()
        for peer in self.peers.values():
            with suppress(PeerFailed):  # the report tells
                peer.wait(timeout_s=90)
