"""`dalle-lib auth-server` and what an organiser does with it while it runs."""

import json
import re
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from dalle_lib.auth.server.database import Database

FOLDER = Path("authority")
PEER_ID = re.compile(r"Qm[1-9A-HJ-NP-Za-km-z]{44}")


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Serve access tokens until Ctrl+C. TLS is a proxy's part; the log names no token, code or link.

    For example:

    dalle-lib auth-server serve --port 8100
    """

    folder: Path = FOLDER
    """Folder of the server."""
    host: str = "127.0.0.1"
    """Address to listen at: this machine's own for a proxy on it, 0.0.0.0 for all."""
    port: int = 8100
    """Port to listen at."""

    def run(self) -> None:
        """Serve."""
        from dalle_lib.auth.server.serving import serve

        print(f"The authority in {self.folder} listens at http://{self.host}:{self.port}", flush=True)
        serve(self.folder, self.host, self.port)


@dataclass(frozen=True, kw_only=True)
class Add:
    """Let the server serve a run; its signing key is made where the root key is given.

    For example:

    dalle-lib auth-server add owner/name --root root.pem
    """

    named: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A folder with a card, or owner/name on the Hub."""
    root: Path | None = None
    """File of the run's root key, which is read once; None where the signing key is there."""
    days: float = 90.0
    """Days until the signing key must be made anew."""
    folder: Path = FOLDER
    """Folder of the server."""

    def run(self) -> None:
        """Write the settings."""
        from dalle_lib.auth.server.runs import signing_key
        from dalle_lib.auth.server.settings import Folder, RunSettings, ServerSettings
        from dalle_lib.run import RunCard

        place, card = Folder(self.folder), RunCard.load(self.named)
        settings = place.settings() if place.settings_file.exists() else ServerSettings()
        if self.root is not None:
            make_signing_key(self.folder, card, self.root, self.days)
        signing_key(place.key(card.name), card)
        source = str(Path(self.named).absolute()) if Path(self.named).exists() else self.named
        if all(run.card != source for run in settings.runs):
            place.save(settings.model_copy(update={"runs": (*settings.runs, RunSettings(card=source))}))
        print(f"{self.folder} serves {card.name}. Roles and limits are set in {place.settings_file}.")


@dataclass(frozen=True, kw_only=True)
class Rotate:
    """Make new signing keys, which a running server takes at once; access tokens by the old ones go on counting.

    For example:

    dalle-lib auth-server rotate --root root.pem
    """

    root: Path
    """File of the root key, whose public half the runs' cards name."""
    days: float = 90.0
    """Days until they must be made anew."""
    folder: Path = FOLDER
    """Folder of the server."""

    def run(self) -> None:
        """Write the keys."""
        from dalle_lib.auth.server.settings import Folder
        from dalle_lib.run import RunCard

        place = Folder(self.folder)
        for run in place.settings().runs:
            card = RunCard.load(place.card(run))
            make_signing_key(self.folder, card, self.root, self.days)
            print(f"{card.name} has a new signing key for {self.days:g} days.")


@dataclass(frozen=True, kw_only=True)
class Ban:
    """Ban a user, or one peer by its id, from all runs of the server, at once.

    For example:

    dalle-lib auth-server ban mallory --reason "sends noise"
    """

    name: Annotated[str, tyro.conf.Positional]
    """Name of a user on the Hub, or id of a peer."""
    reason: str = ""
    """Why, for you and others who organise."""
    folder: Path = FOLDER
    """Folder of the server."""

    def run(self) -> None:
        """Write the ban."""
        kind, name = kind_of(self.name)
        with closing(opened(self.folder)) as database:
            database.ban(kind, name, self.reason, time.time())
        print(f"The {kind} {name} is banned: peers take the new list within minutes.")


@dataclass(frozen=True, kw_only=True)
class Unban:
    """Lift a ban.

    For example:

    dalle-lib auth-server unban mallory
    """

    name: Annotated[str, tyro.conf.Positional]
    """Name of a user on the Hub, or id of a peer."""
    folder: Path = FOLDER
    """Folder of the server."""

    def run(self) -> None:
        """Remove the ban."""
        kind, name = kind_of(self.name)
        with closing(opened(self.folder)) as database:
            if not database.unban(kind, name):
                raise ValueError(f"expected a banned user or peer, but {name} is not banned.")
        print(f"The {kind} {name} is banned no more.")


@dataclass(frozen=True, kw_only=True)
class Members:
    """List users with their peers, and who is banned.

    For example:

    dalle-lib auth-server members --json
    """

    folder: Path = FOLDER
    """Folder of the server."""
    json: bool = False
    """Print one JSON document on standard output."""

    def run(self) -> None:
        """Print them."""
        with closing(opened(self.folder)) as database:
            users = [dict(row) for row in database.rows("SELECT * FROM users ORDER BY run, user")]
            peers = [dict(row) for row in database.rows("SELECT * FROM peers ORDER BY run, user, name")]
            bans = [dict(row) for row in database.rows("SELECT * FROM bans ORDER BY kind, name")]
        if self.json:
            print(json.dumps({"users": users, "peers": peers, "bans": bans}, indent=1))
            return
        now = time.time()
        for user in users:
            own = [peer for peer in peers if (peer["run"], peer["user"]) == (user["run"], user["user"])]
            valid = sum(peer["expires"] > now for peer in own)
            print(f"{user['run']}: {user['user']}, {valid} of {len(own)} peers with a valid access token")
        for ban in bans:
            print(f"banned: {ban['kind']} {ban['name']}{', ' if ban['reason'] else ''}{ban['reason']}")
        if not users and not bans:
            print("Nobody has joined yet.")


@dataclass(frozen=True, kw_only=True)
class Backup:
    """Copy the data base to a file, whole, while the server runs. Keys are not in it: copy them apart.

    For example:

    dalle-lib auth-server backup authority-of-today.sqlite
    """

    file: Annotated[Path, tyro.conf.Positional]
    """File to write; an older backup there is replaced."""
    folder: Path = FOLDER
    """Folder of the server."""

    def run(self) -> None:
        """Write the copy."""
        with closing(opened(self.folder)) as database:
            database.back_up(self.file)
        print(f"{self.file} holds users, peers and bans of {self.folder}, without keys.")


@dataclass(frozen=True)
class AuthServer:
    """Give access tokens of a run to its members."""

    command: Annotated[
        Annotated[Serve, tyro.conf.subcommand("serve")]
        | Annotated[Add, tyro.conf.subcommand("add")]
        | Annotated[Rotate, tyro.conf.subcommand("rotate")]
        | Annotated[Ban, tyro.conf.subcommand("ban")]
        | Annotated[Unban, tyro.conf.subcommand("unban")]
        | Annotated[Members, tyro.conf.subcommand("members")]
        | Annotated[Backup, tyro.conf.subcommand("backup")],
        tyro.conf.arg(name=""),
    ]

    def run(self) -> None:
        """Do what was chosen."""
        self.command.run()


def opened(folder: Path) -> "Database":
    """Return the data base of a server. Raises FileNotFoundError if the folder is none."""
    from dalle_lib.auth.server.database import Database
    from dalle_lib.auth.server.settings import Folder

    place = Folder(folder)
    place.settings()
    return Database(place.database)


def make_signing_key(folder: Path, card, root: Path, days: float) -> None:
    """Write a new signing key for a run. Raises ValueError if the root key is not the card's."""
    from dalle_lib.auth import Authority
    from dalle_lib.auth.server.settings import Folder

    authority, file = Authority.load(root), Folder(folder).key(card.name)
    if card.members is None or authority.public_key != card.members.authority:
        raise ValueError(f"expected the root key of run {card.name!r} in {root}, but its card names another, or none.")
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority.delegate(card.name, timedelta(days=days)).save(file)


def kind_of(name: str) -> tuple[str, str]:
    """Return whether a name is a peer's id or a user's, and the name as bans hold it."""
    return ("peer", name) if PEER_ID.fullmatch(name) else ("user", name.casefold())
