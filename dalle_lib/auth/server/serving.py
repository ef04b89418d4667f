"""Serves the authority's application until it is told to stop."""

import logging
import sys
from pathlib import Path

from filelock import FileLock, Timeout

from dalle_lib.auth.server.settings import Folder

MAX_CONNECTIONS = 1000
"""Connections and requests at a time; more are answered 503."""


def serve(folder: Path, host: str, port: int) -> None:
    """Serve the authority in a folder. Raises ValueError if another process does already, or something is wrong there.

    uvicorn's own log of requests is off, because paths hold handles.
    """
    import uvicorn

    from dalle_lib.auth.server.app import create_app

    place = Folder(folder)
    place.settings()
    lock = FileLock(place.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"a server of {folder} is running already: stop it first, or name another --folder.") from None
    with lock:
        app = create_app(folder)
        own = logging.getLogger("dalle_lib.auth.server")
        own.setLevel(logging.INFO)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        own.addHandler(handler)
        uvicorn.run(
            app, host=host, port=port, access_log=False, proxy_headers=False, server_header=False, log_level="warning",
            timeout_keep_alive=10, timeout_graceful_shutdown=10, limit_concurrency=MAX_CONNECTIONS, ws="none",
        )  # fmt: skip
