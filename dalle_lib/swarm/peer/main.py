"""The main function of a peer's process, which its supervisor starts."""

import json
import logging
import logging.handlers
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dalle_lib.files import BrokenFile
from dalle_lib.one_line import in_one_line
from dalle_lib.swarm.peer.parts import CONNECTS, LostPart, living, nothing_to_save
from dalle_lib.swarm.process.addresses import of_others, require_addresses, require_port, those_that_answer
from dalle_lib.swarm.process.events import EventLog, PatientLog
from dalle_lib.swarm.process.folder import SETTINGS, bind
from dalle_lib.swarm.process.join import LOG, RESTS, STARTS_AGAIN, CannotJoin, NotAMember
from dalle_lib.swarm.process.met import addresses_met
from dalle_lib.swarm.process.settings import PeerSettings
from dalle_lib.swarm.process.signals import set_when_asked

logger = logging.getLogger(__name__)

FOUND_NOBODY = (
    "this peer found no first peer of the run ({}). Does the run still go on, and is the address, with the id at its "
    "end, the one that its organiser gives now? `dalle-lib doctor` with the same options tells more."
)
ATTEMPTS, ATTEMPTS_EVERY_S = 5, 5.0
"""How often a peer tries to get in where somebody answers: two busy ones may not shake hands in p2pd's 5 seconds."""
HTTP_CLIENTS = ("httpx", "httpx2", "httpcore", "httpcore2")
"""Loggers that would write a line for each request, with its whole address; huggingface_hub brings the one or other."""


def main(folder: Path, changed: str = "{}") -> None:
    """Play the role that the folder's settings name, then end the process: this never returns.

    `changed` are the settings that another start has instead, as JSON.
    """
    # hivemind's averagers cannot be pickled for a new process, only forked. Fork is Python's default only
    # on Linux, and only before 3.14.
    multiprocessing.set_start_method("fork", force=True)
    events = PatientLog(folder)
    log_to(folder / LOG)
    code = 1
    try:
        settings = replace(PeerSettings.load(folder / SETTINGS), **json.loads(changed))
        code = RESTS if play(folder, settings, events) else 0
    except LostPart:  # it has told which
        code = STARTS_AGAIN
    except CannotJoin as error:
        logger.exception("this peer cannot take part")
        events.write("failed", error=str(error), cannot_join=True, not_a_member=isinstance(error, NotAMember))
    except Exception as error:
        logger.exception("this peer failed")
        events.write("failed", error=f"{type(error).__name__}: {error}")
    finally:
        # hivemind leaves threads behind that would keep the process alive, and its records in the hash table too.
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
    for name in HTTP_CLIENTS:
        logging.getLogger(name).setLevel(logging.WARNING)


def play(folder: Path, settings: PeerSettings, events: EventLog) -> bool:
    """Join the run in the settings' role, leave at the latest when standard input ends; return whether it only rests.

    A signal by which processes are asked to end makes it leave, too: a system that shuts down sends one to each. Its
    forks heed none, or nothing could be saved; the supervisor ends them after it.

    Raises CannotJoin for what the volunteer or the organiser can mend.
    """
    token = _read_hub_token()
    stop = threading.Event()
    set_when_asked(stop)
    threading.Thread(target=_stop_when_stdin_ends, args=(stop,), daemon=True).start()
    if stop.wait(min(settings.start_after_s, threading.TIMEOUT_MAX)):
        return False

    import torch

    from dalle_lib.swarm import hash_table
    from dalle_lib.swarm.averaging import codec
    from dalle_lib.swarm.peer.bootstrap import help_others
    from dalle_lib.swarm.peer.keeping import keeping_member
    from dalle_lib.swarm.peer.metrics import MetricsBoard
    from dalle_lib.swarm.peer.pulling import Puller, observe
    from dalle_lib.swarm.peer.reachable import ask_others, is_asked

    # A fork of a process with OpenMP's threads may hang, and these keep their priority: a trainer takes more later.
    torch.set_num_threads(1)
    codec.install()
    hash_table.install()
    with nothing_to_save(stop):
        card, membership, workplace = _prepare(folder, settings, token, events)
        if workplace is not None:
            events.write("loaded", device=workplace.told)
        if stop.is_set():
            return False
        board = MetricsBoard(card.key, membership.identity.private_key)
        validators = [*board.validators, *membership.validators()]
        weights = () if workplace is None else tuple(workplace.model.parameters())
        dht = connect(card, settings, membership, validators, weights)
    try:
        with nothing_to_save(stop):
            found = ask_others(dht, card, settings) if is_asked(settings) and not stop.is_set() else {}
            if found.get("is_client"):
                dht.shutdown()
                dht = connect(card, replace(settings, client_mode=True, port=0), membership, validators, weights)
        events.write("connected", addresses=[str(address) for address in dht.get_visible_maddrs()], **found)
        if stop.is_set():
            return False
        membership.publish(dht)
        if settings.role == "observer":
            puller = Puller(card, dht, membership.trust(dht))
            parts = {CONNECTS: dht, "process that takes states": puller.averager}
            # Not before all processes of this peer are forked.
            with keeping_member(membership, events, stop), living(parts, events, stop):
                observe(puller, dht, board, settings, folder, events, stop)
            return False
        if workplace is None:
            with keeping_member(membership, events, stop), living({CONNECTS: dht}, events, stop):
                help_others(dht, board, card, folder, events, stop)
            return False
        return _train(settings, workplace, dht, board, membership, events, stop)
    finally:
        dht.shutdown()


def _train(settings: PeerSettings, workplace, dht, board, membership, events: EventLog, stop: threading.Event) -> bool:
    """Train until the peer leaves, and return whether it only rests. Raises CannotJoin."""
    from dalle_lib.machine import NotEnoughRoom
    from dalle_lib.swarm.peer.keeping import keeping_member
    from dalle_lib.swarm.peer.traffic import MonthlyTraffic
    from dalle_lib.swarm.peer.trainer import Trainer

    traffic = MonthlyTraffic(settings, events)
    try:
        try:
            trainer = Trainer(settings, workplace, dht, board, membership, events, traffic, stop)
        except BrokenFile as error:
            raise CannotJoin(in_one_line(error)) from error
        # Not before all processes of this peer are forked.
        with keeping_member(membership, events, stop), living(trainer.parts, events, stop, trainer.saved) as keeper:
            try:
                with keeper.again_without_memory():
                    trainer.run(stop)
            except NotEnoughRoom as error:
                raise CannotJoin(in_one_line(error)) from error
            finally:
                trainer.leave()
    finally:
        traffic.end()
    return trainer.rests and traffic.is_saved  # else its supervisor, which knows the file alone, would start it again


def _prepare(folder: Path, settings: PeerSettings, token: str | None, events: EventLog):
    """Return the run's card, this peer's membership and, for a trainer, its workplace. Raises CannotJoin.

    A trainer downloads weights and data only if a peer of the run answers.
    """
    from dalle_lib.auth import NoLongerAdmitted
    from dalle_lib.machine import NotEnoughRoom
    from dalle_lib.run import RunCard
    from dalle_lib.swarm.peer.beginning import fetch_state
    from dalle_lib.swarm.peer.traffic import require_traffic
    from dalle_lib.swarm.peer.workplace import Workplace

    try:
        card = RunCard.load(settings.run, token)
        bind(folder, card)
        membership = _membership(card, folder)
        if settings.role != "trainer":
            return card, membership, None
        require_traffic(card, settings)
        _require_answer(card, settings, membership)
        fetch_state(card, folder, events)
        workplace = Workplace.prepare(card, settings, membership.identity.peer_id)
        membership.renew()  # downloads may have taken hours
        return card, membership, workplace
    except CannotJoin:
        raise
    except NoLongerAdmitted as refused:
        raise NotAMember(in_one_line(refused)) from refused
    except (ValueError, ConnectionError, NotEnoughRoom) as error:
        raise CannotJoin(in_one_line(error)) from error


def _membership(card, folder: Path):
    from dalle_lib.swarm.peer.membership import Membership

    try:
        return Membership(card, folder)
    except ValueError as error:
        raise NotAMember(in_one_line(error)) from error


def connect(card, settings: PeerSettings, membership, validators: list, of_trainer: Sequence = ()):
    """Return this peer's part of the run's hash table, connected to those of the run's first peers that answer.

    Where none does, it goes in through peers that it has met before; where none of these answers, a bootstrap peer or
    one that is to be alone begins a swarm. Each goes on looking for all of the first peers. Raises CannotJoin if it
    cannot listen where the settings say, or none of them answers, or they refuse this peer.
    """
    from dalle_lib.swarm.peer.first_peers import NobodyAnswers, enter

    try:
        require_port(settings.host, settings.port)
    except ConnectionError as error:
        raise CannotJoin(str(error)) from error
    (addresses, met), failure = _ways_in(card, settings, membership), None
    somebody_answers = False
    for attempt in range(ATTEMPTS):
        for ways in filter(None, (addresses, met)):
            answering, why = those_that_answer(ways)
            try:
                if not answering:
                    raise NobodyAnswers(why)
                return enter(answering, addresses, settings, membership, validators, of_trainer)
            except NobodyAnswers as error:
                failure, somebody_answers = failure or error, somebody_answers or bool(answering)
        if not somebody_answers:
            break
        logger.info("no first peer lets this one in (%s), attempt %d of %d", failure, attempt + 1, ATTEMPTS)
        time.sleep(ATTEMPTS_EVERY_S)
    if failure is not None and not settings.begins:
        raise CannotJoin(FOUND_NOBODY.format(failure)) from failure
    if failure is not None:
        logger.warning("this peer begins a swarm, because none of the run's first peers answers (%s)", failure)
    return enter([], addresses, settings, membership, validators, of_trainer)


def _require_answer(card, settings: PeerSettings, membership) -> None:
    """Raise CannotJoin if there are peers to try and none answers, as `connect` does, or all have other kits."""
    from dalle_lib.run.kit import Kit
    from dalle_lib.swarm.peer.kits import kits_at

    own, others, why = Kit.own(card), [], ""
    for ways in filter(None, () if settings.begins else _ways_in(card, settings, membership)):
        answering, silent = those_that_answer(ways)
        kits = kits_at(answering, card) if answering else []
        if answering and own.kept_out_by(kits) is None:
            return
        others, why = others + kits, why or silent
    if others:
        raise CannotJoin(own.way_to(others[0], card.name))
    if why:
        raise CannotJoin(FOUND_NOBODY.format(why))


def _ways_in(card, settings: PeerSettings, membership) -> tuple[list[str], list[str]]:
    """Return the addresses of the run's first peers, and of those that this peer has met. Raises CannotJoin."""
    addresses = [*card.initial_peers, *settings.initial_peers]
    try:
        require_addresses(addresses)
    except ValueError as error:
        raise CannotJoin(str(error)) from error
    own_id = membership.identity.peer_id
    return of_others(addresses, own_id), of_others(addresses_met(membership.folder), own_id)


def _read_hub_token() -> str | None:
    """Return the first line of standard input, or None if it is empty. What follows that line stays unread."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode() or None


def _stop_when_stdin_ends(stop: threading.Event) -> None:
    # sys.stdin.read() would hold its lock while hivemind forks, and the forks, which close stdin, would hang.
    while os.read(0, 1):
        pass
    stop.set()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
