"""What peers send to an authority's server, and a server with its clock and its stand-in for the Hub."""

import base64
import itertools
import time
from datetime import timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from fastapi.testclient import TestClient
from hivemind.utils.crypto import RSAPrivateKey

from dalle_lib.auth import Authority, create_app
from dalle_lib.auth.server import Folder, RunSettings, ServerSettings
from dalle_lib.auth.signing import signed_text
from dalle_lib.peer_keys import key_bytes, peer_id_of
from dalle_lib.rehearsal.hub.oauth import OAuth
from dalle_lib.rehearsal.hub.stand_in import Hub
from dalle_lib.run import RunCard
from dalle_lib.run.parts import MembersCard

NOW = 1_800_000_000.0
_NONCES = itertools.count()


class Key(RSAPrivateKey):
    """A peer's key as it signs."""

    def __init__(self) -> None:
        self._private_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.der = key_bytes(self._private_key.public_key())
        self.peer_id = peer_id_of(self.der)


def signed_body(key: Key, purpose: str, nonce: str | None = None, **fields) -> dict:
    """Return a body with a signature; `nonce` is the handle where one is asked for."""
    body = {"time": int(time.time())} | fields
    if nonce is None:
        body["nonce"] = nonce = f"nonce-{next(_NONCES):06}"
    return body | {"signature": key.sign(signed_text(purpose, "club", nonce, body["time"])).decode()}


def joined_body(key: Key, purpose: str, **fields) -> dict:
    """Return the body of a request to join."""
    named = {"public_key": base64.b64encode(key.der).decode(), "peer_name": "ada's <peer>", "platform": "Linux"}
    return signed_body(key, purpose, **(named | fields))


def lay_out(place: Folder, card: RunCard, root: Authority, settings: ServerSettings) -> None:
    """Make the folder of a server of one run, with its card and a signing key in it."""
    for name in "keys", "card":
        (place.path / name).mkdir(parents=True)
    write_card(place, card)
    root.delegate(card.name, timedelta(days=4000)).save(place.key(card.name))
    place.save(settings)


def write_card(place: Folder, card: RunCard) -> None:
    """Put the run's card, or another one of it, into the folder of its server."""
    (place.path / "card" / "run.json").write_text(card.model_dump_json())


class Server:
    """A server of the run "club" in a folder, with a clock to set; `client` talks to it."""

    def __init__(self, folder: Path, hub: Hub, card: RunCard, **settings) -> None:
        self.folder, self.hub, self.oauth, self.now = Folder(folder), hub, OAuth(hub), NOW
        self.root = Authority.generate()
        members = MembersCard(authority=self.root.public_key, max_peers=2, organization="crew", client_id="app")
        self.card = card.with_changes(name="club", members=members)
        runs = (RunSettings(card="card", roles={"Ada": "vouched"}),)
        lay_out(self.folder, self.card, self.root, ServerSettings(runs=runs, **settings))
        self.start()

    def change(self, **fields) -> None:
        """Write the card with other values."""
        self.card = self.card.with_changes(**fields)
        write_card(self.folder, self.card)

    def start(self) -> None:
        self.client = TestClient(create_app(self.folder.path, clock=lambda: self.now), raise_server_exceptions=False)
        self.client.__enter__()

    def stop(self) -> None:
        self.client.__exit__(None, None, None)

    def signed(self, key: Key, purpose: str, nonce: str | None = None, **fields) -> dict:
        return signed_body(key, purpose, nonce, **({"time": int(self.now)} | fields))

    def joining(self, key: Key, purpose: str, **fields) -> dict:
        return joined_body(key, purpose, **({"time": int(self.now)} | fields))

    def post(self, path: str, body: dict, hub_token: str | None = None) -> tuple[int, dict]:
        headers = {} if hub_token is None else {"Authorization": f"Bearer {hub_token}"}
        answer = self.client.post(f"/runs/club{path}", json=body, headers=headers)
        return answer.status_code, answer.json()

    def token(self, key: Key, hub_token: str, **fields) -> tuple[int, dict]:
        return self.post("/token", self.joining(key, "token", **fields), hub_token)

    def device(self, key: Key) -> dict:
        status, told = self.post("/device", self.joining(key, "device"))
        assert status == 201, told
        return told

    def poll(self, key: Key, handle: str) -> tuple[int, dict]:
        return self.post(f"/device/{handle}", self.signed(key, "poll", handle))

    def renew(self, key: Key, access_token: str) -> tuple[int, dict]:
        return self.post("/renewal", self.signed(key, "renewal", access_token=access_token))

    def written(self) -> bytes:
        """Return all that is in the server's files."""
        return b"".join(file.read_bytes() for file in self.folder.path.rglob("*") if file.is_file())
