"""The folder of an authority: its settings, keys, data base, and the Hub token that may list members."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dalle_lib.auth.authority import others_can_read
from dalle_lib.auth.tokens import Role
from dalle_lib.files import BrokenFile, replace_file, small_bytes, small_text
from dalle_lib.run.parts import problems_in

PeerId = Annotated[str, Field(pattern=r"^Qm[1-9A-HJ-NP-Za-km-z]{44}$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunSettings(_Part):
    """One run for which the server issues access tokens."""

    card: str = Field(min_length=1, max_length=1000)
    """Where its card is: a folder, a file, or owner/name on the Hub. A path counts from the folder of the server."""
    roles: dict[str, Role] = {}
    """Roles of users who are more than members: {"ada": "vouched"}."""
    peers: dict[PeerId, Role] = Field(default={}, max_length=100)
    """Peers of the organiser, by id, with the role of each: their keys are proof enough, and nobody is asked."""
    proof_hours: int = Field(default=168, ge=1, le=720)
    """Hours for which a volunteer's proof of identity counts: until then their peers renew access tokens, also after a
    sleep or a pause, and nobody is asked. Lower it where who leaves the organisation shall be out without a ban and the
    server may not list its members. A lower number holds for earlier proofs, too, from a peer's next renewal on."""


class ServerSettings(_Part):
    """What an organiser may set, in `server.json`; the server takes changes at once."""

    runs: tuple[RunSettings, ...] = Field(default=(), max_length=100)
    """The runs that it serves."""
    proxies: int = Field(default=0, ge=0, le=5)
    """How many proxies of yours stand before it. Each adds one address to X-Forwarded-For; with 0, that header, which
    anybody can send, counts nothing."""
    requests_per_minute: int = Field(default=600, ge=1, le=10**6)
    """Requests of one address. Raise it if a school or an office with one address is refused."""
    joins_per_minute: int = Field(default=30, ge=1, le=10**6)
    """Attempts of one address to prove an identity."""
    joins_per_hour: int = Field(default=60, ge=1, le=10**6)
    """Access tokens of one user, renewals included."""
    access_s: int = Field(default=3600, ge=15, le=3600)
    """Seconds for which an access token counts. Peers renew theirs when a third of that, or ten minutes, are left."""
    bans_every_s: int = Field(default=60, ge=5, le=3600)
    """Seconds between two looks of each peer for bans: so long a ban may take. Raise it if they load the server."""


@dataclass(frozen=True)
class Folder:
    """Where everything of one server is."""

    path: Path

    @property
    def settings_file(self) -> Path:
        """The settings, as JSON."""
        return self.path / "server.json"

    @property
    def database(self) -> Path:
        """Users, peers, bans and refusals, as SQLite."""
        return self.path / "authority.sqlite"

    @property
    def lock(self) -> Path:
        """The file that a server which runs has locked."""
        return self.path / "server.lock"

    def key(self, run: str) -> Path:
        """Return the file of the key that signs for a run."""
        return self.path / "keys" / f"{run}.pem"

    def card(self, run: RunSettings) -> str | Path:
        """Return where a run's card is, as `RunCard.load` takes it."""
        beside = self.path / run.card
        return beside if beside.exists() else run.card

    def settings(self) -> ServerSettings:
        """Return the settings. Raises FileNotFoundError without any, and BrokenFile for any that cannot be used."""
        file = self.settings_file
        if not file.exists():
            raise FileNotFoundError(
                f"expected the settings of an authority in {file}, but nothing is there: name another --folder, or "
                f"begin one with dalle-lib auth-server add RUN --folder {self.path}"
            )
        try:
            return ServerSettings.model_validate_json(small_text(file))
        except ValidationError as error:
            raise BrokenFile(f"{file} cannot be used: {problems_in(error)}. Correct it there.") from error
        except (OSError, ValueError) as error:
            raise BrokenFile(f"{file} cannot be read: {error}. Correct it there.") from error

    def save(self, settings: ServerSettings) -> None:
        """Write the settings."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replace_file(self.settings_file) as unfinished:
            unfinished.write_text(settings.model_dump_json(indent=1) + "\n", encoding="utf-8")

    def members_token(self) -> str | None:
        """Return the Hub token in the file `hub_token`, which may list the members of organisations; None without it.

        Raises ValueError if others can read the file, or if it holds no Hub token.
        """
        file = self.path / "hub_token"
        if not file.exists():
            return None
        if others_can_read(file):
            raise ValueError(f"expected that only its owner can read {file}: run chmod 600 {file}")
        return small_bytes(file).decode("ascii").strip() or None
