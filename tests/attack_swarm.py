"""Swarms of tests/attack_peer.py: honest peers and attackers that take part in one run after another.

`python tests/attack_swarm.py --attacks "sign flip" reversed --rules centered_clip mean` prints the outcomes.
"""

import itertools
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import tyro
from attacks import STEP_SAMPLES, STEPS_PER_EPOCH, Scenario
from one_hot import last_lines, start_script
from waiting import wait_until

from dalle_lib.auth import Authority, Identity, Role
from dalle_lib.run import RunCard
from dalle_lib.swarm.peer.membership import IDENTITY, TOKEN
from dalle_lib.swarm.process.events import read_events

SCRIPT = Path(__file__).parent / "attack_peer.py"
BROKEN = 2.0
"""A run is broken when its loss is this many times the loss at its beginning."""


@dataclass
class Outcome:
    """The outcome of one run, as its honest peers saw it."""

    losses: list[list[float]]
    """Losses of each peer, from the beginning to the last epoch."""
    problems: list[tuple[str, dict]]
    """Events about other peers, each with the id of the peer that wrote it."""
    counted: list[int]
    """Number of peers in each round of each honest peer; empty for hivemind's own peers, which do not report it."""
    seconds: float

    @property
    def loss(self) -> float:
        """Loss of the median peer after the last epoch."""
        return statistics.median(losses[-1] for losses in self.losses)

    @property
    def is_broken(self) -> bool:
        """Whether the loss of most peers is above `BROKEN` times what it was."""
        broken = [not losses[-1] <= BROKEN * losses[0] for losses in self.losses]
        return sum(broken) > len(broken) / 2

    def told(self, what: str) -> list[tuple[str, str]]:
        """Return (teller, accused) of the problems whose text contains `what`, as peer ids."""
        return [(teller, problem["peer"]) for teller, problem in self.problems if what in problem["problem"]]


@dataclass
class AttackSwarm:
    """Honest peers, the last of which only connects out, and attackers. The end of the `with` block kills all."""

    card: RunCard
    folder: Path
    honest: int
    attackers: int
    processes: list[subprocess.Popen] = field(default_factory=list)
    starts: int = 0
    runs: int = 0
    invitations: int = 0
    is_running: bool = False

    @property
    def folders(self) -> list[Path]:
        """Folder of each peer, honest ones first."""
        return [self.folder / f"start{self.starts}" / f"peer{index}" for index in range(self.honest + self.attackers)]

    @property
    def peer_ids(self) -> list[str]:
        """Id of each peer, honest ones first."""
        return [read_events(folder)[0]["peer_id"] for folder in self.folders]

    def __enter__(self) -> "AttackSwarm":
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_error) -> None:
        self._end()

    def renew(self) -> None:
        """Start other peers if one of these has ended, or if they are still in a run that failed."""
        if self.is_running or any(process.poll() is not None for process in self.processes):
            self._end()
            self._start()

    def _start(self) -> None:
        self.starts += 1
        self.is_running = False
        for index, folder in enumerate(self.folders):
            folder.mkdir(parents=True)
            settings = {
                "seed": index,
                "is_honest": index < self.honest,
                "is_client": index == self.honest - 1,
                "initial_peers": read_events(self.folders[0])[0]["addresses"] if index else [],
            }
            (folder / "settings.json").write_text(json.dumps(settings))
            self.processes.append(start_script(SCRIPT, folder))
            if index == 0:
                self._wait(lambda: read_events(self.folders[0]), 120)
        self._wait(lambda: all(map(read_events, self.folders)), 120)

    def _end(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):  # none is left, not even of those that a peer had started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdin.close()
        self.processes.clear()

    def invite(self, roles: Sequence[Role | None]) -> dict:
        """Give each peer an access token for later runs, or none, and return the field `members` for their cards."""
        authority = Authority.generate()
        self.invitations += 1  # under the old name the hash table still holds older access tokens
        for folder, role in zip(self.folders, roles, strict=True):
            (folder / TOKEN).unlink(missing_ok=True)
            if role is not None:
                key = Identity.load_or_create(folder / IDENTITY).public_key
                token = authority.issue(folder.name, role, self.name, key, timedelta(hours=1))
                (folder / TOKEN).write_bytes(token.to_bytes())
        return {"authority": authority.public_key}

    @property
    def name(self) -> str:
        """Name of the runs since the last invitation."""
        return f"digits-{self.invitations}"

    def run(
        self,
        epochs: int = 24,
        until_broken: bool = False,
        rule: str = "centered_clip",
        reducers: str = "all",
        members: dict | None = None,
        upload_bits: int = 8,
        **scenario,
    ) -> Outcome:
        """Return the outcome of a run of `epochs` epochs, which may end earlier, as soon as it is broken.

        With 8 bits, these few parameters travel in 16, since tensors are small; with 4 even they travel in 4.
        """
        self.runs += 1
        self.is_running = True
        bits = {"upload_bits": upload_bits, "eight_bit_from": 1 if upload_bits == 4 else 2**16}
        card = self._card(epochs, members, rule=rule, reducers=reducers, **bits)
        places = {"number": self.runs, "card": str(card.save(self.folder / f"run{self.runs}"))}
        whole = Scenario(**places, honest=self.honest, attackers=self.attackers, **scenario)
        self._say(json.dumps(asdict(whole)))
        self._wait(lambda: self._all_have("ready"), 120)
        began = time.monotonic()
        self._say("go")
        self._wait(lambda: self._have_learnt(epochs) or (until_broken and self._outcome(epochs).is_broken), 10 * epochs)
        seconds = time.monotonic() - began
        self._say("stop")
        self._wait(lambda: self._all_have("left"), 120)
        self.is_running = False
        return replace(self._outcome(epochs), seconds=seconds)

    def _card(self, epochs: int, members: dict | None, **averaging) -> RunCard:
        quick = {
            "target_batch_size": STEP_SAMPLES * STEPS_PER_EPOCH * (self.honest + self.attackers),
            "matchmaking_s": 2.5,
            "timeout_s": 8.0,
            "delayed": False,
        }
        return self.card.with_changes(
            name=self.name,
            seed=self.runs,
            members=members,
            optimizer={**self.card.optimizer.model_dump(), "total_epochs": 10 * epochs},
            averaging={**self.card.averaging.model_dump(), **quick, **averaging},
        )

    def _outcome(self, epochs: int) -> Outcome:
        honest = range(self.honest)
        losses = [[e["loss"] for kind in ("ready", "epoch") for e in self._told(i, kind)] for i in honest]
        problems = [
            (peer, event) for i, peer in zip(honest, self.peer_ids, strict=False) for event in self._told(i, "problem")
        ]
        counted = [len(e["counted"]) for i in honest for e in self._told(i, "Round")]
        return Outcome([values[: epochs + 1] for values in losses], problems, counted, 0.0)

    def _have_learnt(self, epochs: int) -> bool:
        return all(any(e["epoch"] >= epochs for e in self._told(index, "epoch")) for index in range(self.honest))

    def _all_have(self, kind: str) -> bool:
        return all(self._told(index, kind) for index in range(len(self.folders)))

    def _told(self, index: int, kind: str) -> list[dict]:
        return [event for event in read_events(self.folders[index] / str(self.runs)) if event["event"] == kind]

    def _say(self, line: str) -> None:
        for process in self.processes:
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()

    def _wait(self, condition: Callable[[], object], timeout_s: float) -> None:
        wait_until(condition, timeout_s, lambda: f"in run {self.runs}:\n{self._logs()}", self._require_all)

    def _require_all(self) -> None:
        ended = [process.args[-1].name for process in self.processes if process.poll() is not None]
        assert not ended, f"{ended} ended:\n{self._logs()}"

    def _logs(self) -> str:
        return last_lines(self.folders, ("output.txt", "peer.log"), 12)


@dataclass(kw_only=True)
class Figures:
    """Prints the outcomes of runs of 30 epochs with 5 honest peers and 2 attackers."""

    attacks: list[str]
    """Attacks, one run each: none, reversed, sign flip, noise, NaN, weight, a little, or reducer."""
    rules: list[str] = field(default_factory=lambda: ["centered_clip"])
    """Rules of the runs: those of a run card, or hivemind."""
    worker_momentum: bool = False
    """Whether peers send the momentum of their gradients."""
    runs: int = 1
    """Runs of each attack and rule."""

    def print(self) -> None:
        """Print a line for each run."""
        with (
            tempfile.TemporaryDirectory() as folder,
            AttackSwarm(RunCard.load("emoji-mini"), Path(folder), 5, 2) as swarm,
        ):
            for attack, rule, _ in itertools.product(self.attacks, self.rules, range(self.runs)):
                outcome = swarm.run(
                    epochs=30,
                    until_broken=True,
                    attack=None if attack == "none" else attack,
                    worker_momentum=self.worker_momentum,
                    **{"is_stock": True} if rule == "hivemind" else {"rule": rule},
                )
                last = (
                    f"broken after {len(outcome.losses[0]) - 1} epochs" if outcome.is_broken else f"{outcome.loss:.4f}"
                )
                print(f"{attack:10} {rule:18} loss {last}, {outcome.seconds:.0f} s", flush=True)


if __name__ == "__main__":
    tyro.cli(Figures).print()
