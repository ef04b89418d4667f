"""`rehearse`: a run played on this machine before anybody is invited, with what goes wrong on evenings."""

import logging
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from dalle_lib.rehearsal.report import Report
from dalle_lib.rehearsal.settings import Rehearsal
from dalle_lib.rehearsal.stage import STRANGER, Stage
from dalle_lib.run import RunCard

logger = logging.getLogger(__name__)

FIRST_EPOCH_S = 300.0
"""Seconds in which the first volunteers must have ended an epoch, before anything else is played."""
BAN_S = 120.0
"""Seconds after a ban for which the rehearsal waits at most until the banned peer has ended: see `BANS_EVERY_S`."""
LATE, REFUSED, BANNED, KILLED, LEAVES, BACK = 0.1, 0.2, 0.3, 0.45, 0.6, 0.65
"""When it is played, as parts of the minutes: others join, a stranger asks, and what comes to volunteers."""


def rehearse(
    run: str | Path,
    rehearsal: Rehearsal | None = None,
    folder: str | Path | None = None,
    token: str | None = None,
    say: Callable[[str], None] = logger.info,
) -> Report:
    """Play a run on this machine, and return what was seen and what would have gone wrong.

    A first peer and volunteers on slow links train with a copy of the run's card that has fresh keys. A monitor keeps
    checkpoints of it, at a stand-in for the Hub unless the run's data are on the true one. If the run has members, they
    prove who they are to an authority's server and that stand-in; a stranger is refused and a volunteer is banned. One
    is killed and comes back, one leaves. `folder` is a new one, where logs and models stay; without it they are
    removed. `token` is a Hub token for private runs; `say` is told what is played.

    All processes end with this, also by an exception. Raises ValueError for a run that cannot be played, CannotJoin if
    the first volunteer cannot take part, and FileExistsError if the folder holds something.
    """
    rehearsal, card = rehearsal or Rehearsal(), RunCard.load(run, token)
    if rehearsal.samples is not None:
        averaging = card.averaging.model_dump() | {"target_batch_size": rehearsal.samples}
        card = card.with_changes(averaging=averaging)
    card.require_beside()
    with ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rehearsal-", ignore_cleanup_errors=True))
        elif Path(folder).exists() and any(Path(folder).iterdir()):
            raise FileExistsError(f"expected a new folder for the rehearsal, but {folder} holds something.")
        say(f"Starting a first peer and {rehearsal.volunteers} volunteers of {card.name} ...")
        with closing(Stage(card, Path(folder), rehearsal.names, rehearsal.link, token)) as stage:
            stage.watch(rehearsal.minutes)
            began = play(stage, rehearsal, say)
            over = time.time()
            say("All leave ...")
            kept = stage.let_all_leave(began)
        return Report.of(stage, rehearsal, began, over, kept)


def play(stage: Stage, rehearsal: Rehearsal, say: Callable[[str], None]) -> float:
    """Do to the run what happens on evenings, and return when the first epoch had ended, in seconds since 1970."""
    names, length_s = rehearsal.names, 60 * rehearsal.minutes
    early = max(2, (rehearsal.volunteers + 1) // 2)
    for name in names[:early]:
        stage.enter(rehearsal.settings(name))
    stage.peers[names[0]].wait_for("joined", timeout_s=FIRST_EPOCH_S)
    say(f"{' and '.join(names[:early])} train ...")
    _wait_until_counted(stage, names[0], FIRST_EPOCH_S)
    began = time.time()
    for part, words, act, name in _acts(stage, rehearsal, early):
        time.sleep(max(0.0, began + part * length_s - time.time()))
        if act in (stage.kill, stage.ban, stage.leave):  # who has not counted yet would show nothing
            _wait_until_counted(stage, name, length_s / 2)
        say(f"{'A stranger' if name == STRANGER else name} {words} ...")
        act(name)
    time.sleep(max(0.0, began + length_s - time.time()))
    for act in [act for act in stage.acts if act.what == "is banned"]:
        while stage.peers[act.name].is_running and time.time() < act.time + BAN_S:
            time.sleep(0.5)
    return began


def _acts(stage: Stage, rehearsal: Rehearsal, early: int) -> list[tuple[float, str, Callable[[str], object], str]]:
    """Return what is done when, as a part of the minutes, with its words, and to whom. The first volunteer stays."""

    def enter(name: str) -> None:
        stage.enter(rehearsal.settings(name))

    has_members = stage.card.members is not None
    killed, *others = rehearsal.names[1:]
    acts = [(LATE, "joins", enter, name) for name in rehearsal.names[early:]]
    acts += [(KILLED, "is killed", stage.kill, killed), (BACK, "comes back", enter, killed)]
    if has_members:
        acts.append((REFUSED, "asks for admission", stage.let_ask, STRANGER))
        acts += [(BANNED, "is banned", stage.ban, name) for name in others[:1]]
    acts += [(LEAVES, "leaves", stage.leave, name) for name in others[has_members : has_members + 1]]
    return sorted(acts, key=lambda act: act[0])


def _wait_until_counted(stage: Stage, name: str, timeout_s: float) -> None:
    """Return when a volunteer's peer was in a round with others, when it has ended, or when this takes too long."""
    peer, deadline = stage.peers[name], time.monotonic() + timeout_s
    while peer.is_running and time.monotonic() < deadline:
        rounds = [event for event in peer.events() if event["event"] == "averaged"]
        if any(len(event["shares"]) > 1 for event in rounds):
            return
        time.sleep(0.5)
