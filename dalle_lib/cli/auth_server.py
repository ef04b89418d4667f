"""`dalle-lib auth-server` and what an organiser does with it while it runs."""

import json
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    pass

FOLDER = Path("authority")


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

    A run that it serves already gets another card, such as the published one, and keeps its key and its settings.

    For example:

    dalle-lib auth-server add owner/name --root root.pem

    dalle-lib auth-server add owner/name --folder keys/authority
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
        from dalle_lib.organizing.keys import make_signing_key
        from dalle_lib.run import RunCard

        place, card = Folder(self.folder), RunCard.load(self.named)
        settings = place.settings() if place.settings_file.exists() else ServerSettings()
        if self.root is not None:
            make_signing_key(self.folder, card, self.root, self.days)
        signing_key(place.key(card.name), card)
        source = str(Path(self.named).absolute()) if Path(self.named).exists() else self.named
        of_run = [run for run in settings.runs if run.card == source or name_of(place.card(run)) == card.name]
        before = of_run[0] if of_run else RunSettings(card=source)
        others = tuple(run for run in settings.runs if run not in of_run)
        runs = (*others, before.model_copy(update={"card": source}))
        place.save(settings.model_copy(update={"runs": runs}))
        print(
            f"{self.folder} serves {card.name}, by the card {source}. Roles, your own peers and limits are set in "
            f"{place.settings_file}."
        )


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
        from dalle_lib.organizing.keys import make_signing_key
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
        from dalle_lib.auth.server.banning import ban

        print(f"The {ban(self.folder, self.name, self.reason)} is banned: peers take the new list within minutes.")


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
        from dalle_lib.auth.server.banning import unban

        print(f"The {unban(self.folder, self.name)} is banned no more.")


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
        from dalle_lib.auth.server.database import opened

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
            of_all = "a peer" if len(own) == valid == 1 else f"{valid} of {len(own)} peers"
            way = ", by the key of a peer of yours" if user["way"] == "peer" else ""
            print(f"{user['run']}: {user['user']}, {of_all} with a valid access token{way}")
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
        from dalle_lib.auth.server.database import opened

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


def name_of(card: str | Path) -> str | None:
    """Return the name of a run whose card is on this machine, or on the Hub; None if it cannot be read."""
    from dalle_lib.run import RunCard

    try:
        return RunCard.load(card).name
    except (ValueError, OSError):
        return None
