"""An authority's server under uvicorn in a thread, with the run "club" and its clock that of this machine."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from auth_asking import lay_out, write_card

from dalle_lib.auth import Authority, create_app
from dalle_lib.auth.server import Folder, RunSettings, ServerSettings
from dalle_lib.rehearsal.hub.oauth import OAuth
from dalle_lib.rehearsal.hub.stand_in import Hub, User
from dalle_lib.rehearsal.hub.wire import deaf_socket
from dalle_lib.run import RunCard
from dalle_lib.run.parts import MembersCard

ADA, BOB = "hf_ada_secret", "hf_bob_secret"


class ServedAuthority:
    """Serves the run "club" at `card.members.server`; `away` ends the server for a while. `ahead_s` sets its clock."""

    def __init__(self, folder: Path, hub: Hub, card: RunCard, **settings) -> None:
        self.place, self.oauth, self.root, self.ahead_s = Folder(folder), OAuth(hub), Authority.generate(), 0.0
        hub.users |= {ADA: User("Ada", {"crew": "read"}), BOB: User("bob", {"others": "read"})}
        members = {"authority": self.root.public_key, "organization": "crew", "client_id": "app"}
        self.card = card.with_changes(name="club", members=MembersCard(**members))
        lay_out(self.place, self.card, self.root, ServerSettings(runs=(RunSettings(card="card"),), **settings))
        self._serve(socket.create_server(("127.0.0.1", 0)))
        members |= {"server": f"http://127.0.0.1:{self.port}", "invitation": "https://huggingface.co/crew"}
        self.write(members=MembersCard(**members))

    def write(self, **changes) -> None:
        """Write the card, with other values."""
        self.card = self.card.with_changes(**changes)
        write_card(self.place, self.card)

    def _serve(self, listening: socket.socket) -> None:
        self.port = listening.getsockname()[1]
        app = create_app(self.place.path, clock=lambda: time.time() + self.ahead_s)
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        self._thread = threading.Thread(target=self._server.run, args=[[listening]])
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.02)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        self.stop()
        kept = deaf_socket(self.port)
        try:
            yield
        finally:
            kept.listen()
            self._serve(kept)
