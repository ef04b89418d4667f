"""The runs that a server serves: cards, signing keys and roles, as they are now."""

import asyncio
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dalle_lib.auth.authority import Authority, authority_key
from dalle_lib.auth.server.refusals import Refusal, hub_away
from dalle_lib.auth.server.settings import Folder, RunSettings, ServerSettings
from dalle_lib.auth.tokens import Role
from dalle_lib.one_line import in_one_line
from dalle_lib.run import RunCard
from dalle_lib.run.files import card_here

logger = logging.getLogger(__name__)

HUB_CARD_S = 60.0
"""Seconds between looks at cards on the Hub."""


@dataclass(frozen=True)
class ServedRun:
    """One run, with what the server needs of it."""

    card: RunCard
    key: Authority
    roles: dict[str, Role]
    """Roles of users, by their names in lower case."""
    proof_s: float
    """Seconds for which a proof of identity counts."""
    peers: dict[str, Role] = field(default_factory=dict)
    """Roles of the organiser's own peers, by their ids."""

    @property
    def name(self) -> str:
        """The run's name, which access tokens hold."""
        return self.card.name

    @property
    def organiser(self) -> str:
        """The user of the organiser's own peers."""
        return organiser_of(self.card)

    def role(self, user: str, peer: str) -> Role:
        """Return what a user of the run, or a peer of its organiser, is trusted with."""
        return self.peers.get(peer) or self.roles.get(user.casefold(), Role.MEMBER)


class Runs:
    """The runs of a folder. What changes there counts at once; what is broken leaves the last that worked."""

    def __init__(self, folder: Folder) -> None:
        """Raises ValueError or FileNotFoundError if the settings, a card on this machine or a key cannot be used."""
        self.folder, self.settings = folder, folder.settings()
        self._stamps: dict[Path, tuple[int, ...]] = {folder.settings_file: _stamp(folder.settings_file)}
        self._cards: dict[str, RunCard] = {}
        self._keys: dict[str, Authority] = {}
        for run in self.settings.runs:
            if self._file(run) is not None:
                self._load(run)

    def named(self, name: str) -> ServedRun:
        """Return the run of that name. Raises Refusal if the server serves none."""
        self.refresh()
        for run in self.settings.runs:
            card = self._cards.get(run.card)
            if card is not None and card.name == name:
                roles = {user.casefold(): role for user, role in run.roles.items()}
                return ServedRun(card, self._keys[card.name], roles, 3600.0 * run.proof_hours, run.peers)
        if len(self._cards) < len(self.settings.runs):
            raise hub_away("it has not given the card of a run that this authority serves: is the run published?")
        raise Refusal("run_unknown", "expected a run of this authority, but it serves none of that name.",
                      "Is the address in the run's card right? Load the card anew.")  # fmt: skip

    def all(self) -> list[str]:
        """Return the names of the runs whose cards are known."""
        return sorted(card.name for card in self._cards.values())

    def refresh(self) -> None:
        """Read anew what has changed on this machine."""
        file = self.folder.settings_file
        if self._has_changed(file):
            try:
                self._take(self.folder.settings())
            except (ValueError, OSError) as error:
                logger.error("the settings stay as they were: %s", in_one_line(error))
        for run in self.settings.runs:
            file, known = self._file(run), self._cards.get(run.card)
            key = None if known is None else self.folder.key(known.name)
            changed = [one for one in (file, key) if one is not None and self._has_changed(one)]
            if changed:  # of a card on the Hub, only the key can have changed
                self._try(run, known if file is None else None)

    async def look_at_hub(self) -> None:
        """Read the cards that are on the Hub anew, from time to time, until it is cancelled."""
        while True:
            for run in self.settings.runs:
                if self._file(run) is None:
                    try:
                        self._try(run, await asyncio.to_thread(RunCard.load, run.card))
                    except (ValueError, OSError) as error:
                        logger.warning("the card of %s stays as it was: %s", run.card, in_one_line(error))
            await asyncio.sleep(HUB_CARD_S)

    def _take(self, settings: ServerSettings) -> None:
        self.settings = settings
        kept = {run.card for run in settings.runs}
        self._cards = {name: card for name, card in self._cards.items() if name in kept}
        for run in settings.runs:
            if run.card not in self._cards and self._file(run) is not None:
                self._try(run, None)

    def _try(self, run: RunSettings, card: RunCard | None) -> None:
        try:
            self._load(run, card)
        except (ValueError, OSError) as error:
            logger.error("the card and the key of %s stay as they were: %s", run.card, in_one_line(error))

    def _load(self, run: RunSettings, card: RunCard | None = None) -> None:
        if (file := self._file(run)) is not None:
            self._stamps[file] = _stamp(file)
        card = card or RunCard.load(self.folder.card(run))
        if any(other.name == card.name for source, other in self._cards.items() if source != run.card):
            raise ValueError(
                f"expected runs of different names in {self.folder.settings_file}, but two are {card.name}"
            )
        file = self.folder.key(card.name)
        self._stamps[file] = _stamp(file)
        key = signing_key(file, card)
        self._cards[run.card], self._keys[card.name] = card, key

    def _file(self, run: RunSettings) -> Path | None:
        """Return the file of a card on this machine; None for one on the Hub."""
        try:
            return card_here(self.folder.card(run))
        except ValueError:  # nothing is there: `_load` says so, and the last card stays
            return self.folder.path / run.card

    def _has_changed(self, file: Path) -> bool:
        before, now = self._stamps.get(file), _stamp(file)
        self._stamps[file] = now
        return before != now


def organiser_of(card: RunCard) -> str:
    """Return the user of the organiser's own peers: the organisation, whose name no user of the Hub can have."""
    return card.members.organization or f"organiser of {card.name}"


def signing_key(file: Path, card: RunCard) -> Authority:
    """Return the key in a file, which signs for a card's run now. Raises ValueError if it does not."""
    if card.members is None:
        raise ValueError(f"run {card.name!r} has no `members`: everybody may join it, and it needs no authority.")
    if not file.exists():
        raise ValueError(
            f"expected a key that signs for run {card.name!r} in {file}, but nothing is there: make one with "
            "dalle-lib auth-server rotate --root FILE"
        )
    key = Authority.load(file)
    bans = key.sign_bans(card.name, 0, (), (), timedelta(minutes=1))
    try:
        bans.check(authority_key(card.members.authority), card.name, datetime.now(UTC))
    except ValueError as error:
        raise ValueError(f"the key in {file} cannot sign for run {card.name!r}: {error}") from error
    return key


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino
