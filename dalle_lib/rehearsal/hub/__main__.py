"""`python -m dalle_lib.rehearsal.hub FOLDER PORT`: the stand-in by hand."""

import contextlib
import json
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from dalle_lib.rehearsal.hub.oauth import OAuth
from dalle_lib.rehearsal.hub.stand_in import Hub, User


def main(folder: Path, port: int) -> None:
    """Serve what is in a folder until Ctrl+C. Its users.json maps Hub tokens to users, and begins with two of them."""
    with Hub(folder, port) as hub:
        users = folder / "users.json"
        if not users.exists():
            ada, bob = User("ada", {"crew": "write"}), User("bob")
            users.write_text(json.dumps({"hf_ada": asdict(ada), "hf_bob": asdict(bob)}, indent=1))
        hub.users |= {token: User(**user) for token, user in json.loads(users.read_text()).items()}
        OAuth(hub)
        print(
            f"HF_ENDPOINT={hub.url} HF_HUB_DISABLE_XET=1 NO_PROXY=127.0.0.1,localhost; Hub tokens: {users}\n"
            f"Codes of device flows are answered at {hub.url}/oauth/device",
            flush=True,
        )
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
