"""The stand-in in the place of the Hub, for this process and those that it starts."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import constants

from dalle_lib.rehearsal.hub.stand_in import Hub


@contextlib.contextmanager
def hub_here(folder: str | Path) -> Iterator[Hub]:
    """Serve a stand-in that keeps all in `folder`, with a cache of its own; huggingface_hub takes it for the Hub.

    What this process and its children are logged in with at the true Hub is not found meanwhile.
    """
    folder = Path(folder).resolve()
    (folder / "hub").mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(Hub(folder / "hub"))
        paths = {"HF_HUB_CACHE": str(folder / "cache"), "HF_TOKEN_PATH": str(folder / "no-token")}
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        known = {"ENDPOINT": hub.url, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_DISABLE_XET": True}
        for name, value in (paths | known).items():
            stack.callback(setattr, constants, name, getattr(constants, name))
            setattr(constants, name, value)
        told = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1,localhost"}
        stack.callback(os.environ.update, dict(os.environ))
        for name in paths | told:
            stack.callback(os.environ.pop, name, None)
        for name in "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN":
            os.environ.pop(name, None)
        os.environ.update(paths | told)
        yield hub
