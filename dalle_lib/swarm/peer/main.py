"""What runs inside a peer's process. Started by the supervisor, never by hand."""

import logging
import logging.handlers
import multiprocessing
import os
import sys
import threading
from pathlib import Path

from dalle_lib.swarm.process.events import EventLog
from dalle_lib.swarm.process.join import LOG, SETTINGS
from dalle_lib.swarm.process.settings import PeerSettings

logger = logging.getLogger(__name__)


def main(folder: Path) -> None:
    """Play the role that the folder's settings name; never returns."""
    # hivemind's averagers cannot be sent to a new process, only forked; Python's own default differs from system to
    # system and, on Linux, from 3.14 on.
    multiprocessing.set_start_method("fork", force=True)
    events = EventLog(folder)
    log_to(folder / LOG)
    code = 1
    try:
        play(folder, PeerSettings.load(folder / SETTINGS), events)
        code = 0
    except Exception as error:
        logger.exception("this peer failed")
        events.write("failed", error=f"{type(error).__name__}: {error}")
    finally:
        # hivemind leaves threads behind that would keep the process, and so its records, alive.
        logging.shutdown()
        os._exit(code)


def log_to(file: Path) -> None:
    """Send all log lines of this process to `file`, which is rotated, and none to the terminal."""
    from hivemind.utils.logging import use_hivemind_log_handler

    use_hivemind_log_handler("nowhere")
    handler = logging.handlers.RotatingFileHandler(file, maxBytes=2_000_000, backupCount=2)
    logging.basicConfig(
        level=logging.INFO, handlers=[handler], format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def play(folder: Path, settings: PeerSettings, events: EventLog) -> None:
    """Join the run in the settings' role, and leave it when standard input ends."""
    import torch

    from dalle_lib.run import RunCard
    from dalle_lib.swarm.averaging import codec
    from dalle_lib.swarm.peer.greeter import greet
    from dalle_lib.swarm.peer.membership import Membership
    from dalle_lib.swarm.peer.metrics import MetricsBoard
    from dalle_lib.swarm.peer.trainer import Trainer

    token = _read_token()
    stop = threading.Event()
    threading.Thread(target=_stop_when_stdin_ends, args=(stop,), daemon=True).start()
    if stop.wait(settings.start_after_s):
        return
    torch.set_num_threads(settings.threads)
    codec.install()
    card = RunCard.load(settings.run, token)
    trainer = Trainer(card, settings, folder, events) if settings.role == "trainer" else None
    membership = Membership(card, folder)
    board = MetricsBoard(card.key, membership.identity.private_key)
    dht = connect(card, settings, membership, [*board.validators, *membership.validators()])
    try:
        events.write("connected", addresses=[str(address) for address in dht.get_visible_maddrs()])
        membership.publish(dht)
        if trainer is None:
            greet(dht, stop)
            return
        trainer.join(dht, board, membership)
        try:
            trainer.run(stop)
        finally:
            stop.set()
            trainer.leave()
    finally:
        dht.shutdown()


def connect(card, settings: PeerSettings, membership, validators: list):
    """Return this peer's part of the run's hash table. Raises RuntimeError if the run's first peers refuse it."""
    import hivemind
    from hivemind.dht.protocol import ValidationError

    try:
        return hivemind.DHT(
            start=True,
            initial_peers=[*card.initial_peers, *settings.initial_peers],
            host_maddrs=[f"/ip4/{settings.host}/tcp/{settings.port}"],
            client_mode=settings.client_mode,
            record_validators=validators,
            identity_path=membership.identity_file,
            authorizer=membership.authorizer,
            startup_timeout=60,
        )
    except ValidationError as error:
        raise RuntimeError(
            f"the run's first peers refuse this one: {error}. If it is about time, set this computer's clock; if it is "
            "about access, join with --client-mode. `dalle-lib doctor` tells more."
        ) from error


def _read_token() -> str | None:
    """Return the first line of standard input and no byte more, or None if it is empty."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode() or None


def _stop_when_stdin_ends(stop: threading.Event) -> None:
    # Not sys.stdin.read(): its lock would be held while hivemind forks, and the forks, which close stdin, would hang.
    while os.read(0, 1):
        pass
    stop.set()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
