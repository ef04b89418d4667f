"""A run that lives for an hour on this machine: `python long_rehearsal.py FOLDER MINUTES` plays it and prints JSON.

Six trainers come, and four of them go: they leave, are killed, or hang for a while. A seventh peer lies
(`boasting_peer.py`). The Hub is a stand-in with faults, and away for a twelfth of the time. A monitor keeps the run,
and is killed in between. Notebook 02 draws from its checkpoints.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psutil

from dalle_lib.auth.keys import PeerKey
from dalle_lib.monitor.contributions import contributions
from dalle_lib.monitor.database import MonitorDatabase
from dalle_lib.notebook_run import execute
from dalle_lib.rehearsal.hub.here import hub_here
from dalle_lib.rehearsal.hub.stand_in import Hub, User
from dalle_lib.rehearsal.hub.wire import Fault
from dalle_lib.run import RunCard
from dalle_lib.run.newest import newest_checkpoint
from dalle_lib.swarm import LocalSwarm, PeerSettings
from dalle_lib.swarm.process.events import read_starts, samples_in
from dalle_lib.swarm.process.folder import IDENTITY, SETTINGS

NAMES, LIAR, REPOSITORY = ("ada", "bob", "cleo", "dev", "eve", "fay"), "mallory", "crew/kept"
STAY = NAMES[:2]
"""The trainers that are there all the time: two, as one alone cannot bear witness against the liar."""
NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "02_generate_images.ipynb"
FAULTS = [
    {"status": 503}, {"status": 429, "retry_after": 3}, {"silent": True}, {"cut_after": 100_000}, {"rate": 50_000},
    {"drop_last": 1}, {"damaged": True}, {"delay_s": 5.0},
]  # fmt: skip
FAULT_S, LEAST_S = 15.0, 30.0
PATIENCE_S = 600.0
"""Seconds more in which a busy machine plays on until the liar alone is accused, and all was played: that takes eight
epochs, of most of which two others tell its weight, or four of its batches recomputed beside those of others."""


class Trainers:
    """Who comes and goes, by dice."""

    def __init__(self, swarm: LocalSwarm, minutes: float, dice: random.Random) -> None:
        self.swarm, self.dice, self.acts = swarm, dice, list[tuple[float, str, str]]()
        self.in_s, self.out_s, self.began = 60 * minutes / 8, 60 * minutes / 40, time.time()
        self.due = {name: self.began + 5.0 * number for number, name in enumerate(NAMES)}
        self.frozen: dict[str, list[psutil.Process]] = {}

    def step(self) -> None:
        """Do what is due."""
        for name in NAMES:
            if time.time() < self.due[name]:
                continue
            if name in self.frozen:
                self._go_on(name)
            elif name not in self.swarm.peers or not self.swarm.peers[name].is_running:
                client = NAMES.index(name) % 3 == 2
                self._note(name, "comes", self.in_s)
                self.swarm.add(PeerSettings(run="", name=name, batch_size=8, client_mode=client))
            else:
                self.dice.choices([self._leave, self._kill, self._freeze], [5, 3, 2])[0](name)
            if name in STAY:
                self.due[name] = float("inf")

    def _note(self, name: str, what: str, mean_s: float) -> None:
        self.acts.append((round(time.time() - self.began, 1), name, what))
        self.due[name] = time.time() + LEAST_S + self.dice.expovariate(1 / mean_s)

    def _leave(self, name: str) -> None:
        self._note(name, "leaves", self.out_s)
        self.swarm.peers[name].ask_to_stop()

    def _processes(self, name: str) -> list[psutil.Process]:
        first = psutil.Process(self.swarm.peers[name].supervisor_id)
        return [first, *first.children(recursive=True)]

    def _kill(self, name: str) -> None:
        self._note(name, "is killed", self.out_s)
        for process in self._processes(name):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _freeze(self, name: str) -> None:
        self._note(name, "hangs", self.out_s)
        self.frozen[name] = self._processes(name)
        for process in self.frozen[name]:
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def _go_on(self, name: str) -> None:
        self._note(name, "goes on", self.in_s)
        for process in self.frozen.pop(name):
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def end(self) -> None:
        """Wake who hangs, so that all can leave."""
        for name in list(self.frozen):
            self._go_on(name)


class Monitored:
    """The monitor's process, its sizes, and what was drawn with its checkpoints."""

    def __init__(self, run: str, folder: Path, minutes: float, token: str) -> None:
        self.folder, self.run, self.log = folder / "monitor", run, folder / "monitor.log"
        (folder / "token").write_text(token)
        self.command = [
            *(sys.executable, "-m", "dalle_lib", "monitor", "--run", run, "--folder", str(self.folder)),
            *("--checkpoint-minutes", f"{minutes / 20:g}", "--look-s", "1", "--status-s", "5", "--host", "127.0.0.1"),
        ]
        self.environment = os.environ | {"HF_TOKEN_PATH": str(folder / "token")}
        self.sizes: list[dict] = []
        self.start()

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """Kill it with all that it started, as a power cut does."""
        first = psutil.Process(self.process.pid)
        for process in [first, *first.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def leave(self) -> int:
        """Let it leave, and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(400)

    def look(self, began: float) -> None:
        """Note its memory, open files and sizes now."""
        with suppress(psutil.NoSuchProcess, FileNotFoundError):
            process = psutil.Process(self.process.pid)
            self.sizes.append({
                "at_s": round(time.time() - began), "rss_mb": process.memory_info().rss >> 20,
                "open_files": process.num_fds(),
                "status_bytes": (self.folder / "status.json").stat().st_size,
                "database_bytes": (self.folder / "monitor.sqlite").stat().st_size,
            })  # fmt: skip

    def accused(self) -> list[str]:
        """Return the names of those of whom its status says now that they tell what is not so."""
        with suppress(FileNotFoundError):
            alarms = json.loads((self.folder / "status.json").read_text())["alarms"]
            told = [a["told"] for a in alarms if a["kind"] in ("claims", "losses") and a["until"] is None]
            return sorted({each.split(" (")[0] for each in told})
        return []

    def draw(self, out: Path) -> int | None:
        """Run notebook 02 with the run's newest checkpoint, and return the epoch of that; None if there is none yet."""
        newest = newest_checkpoint(RunCard.load(self.run))
        if newest is None:
            return None
        out.mkdir(parents=True)
        source = NOTEBOOK.read_text().replace('MODEL = \\"emoji\\"', f'MODEL = \\"{self.run}\\"')
        source = source.replace("CANDIDATES = 0 ", "CANDIDATES = 8 ")
        (out / "notebook.ipynb").write_text(source)
        execute(out / "notebook.ipynb", out / "page.html", out, lambda: None)
        return newest.epoch


def play(folder: Path, minutes: float, seed: int = 0) -> dict:
    """Play it in `folder` until it is `minutes` old and the liar alone is accused, and return what came of it."""
    dice, drawn, faults = random.Random(seed), {}, []
    mini = RunCard.load("emoji-mini")
    key = PeerKey.load_or_create(_made(folder / "monitor" / "monitor") / IDENTITY)
    card = mini.with_changes(
        name="long", checkpoints=REPOSITORY, monitors=(key.peer_id,),
        optimizer=mini.optimizer.model_dump() | {"total_epochs": 5000},
    )  # fmt: skip
    with ExitStack() as stack:
        hub = stack.enter_context(hub_here(folder / "hub"))
        hub.users["hf_made_up"] = User("keeper", {"crew": "write"})
        swarm = stack.enter_context(closing(LocalSwarm.start(card, folder / "swarm")))
        liar = stack.enter_context(_lying(swarm.run, folder / LIAR))
        trainers = Trainers(swarm, minutes, dice)
        stack.callback(trainers.end)
        monitored = Monitored(swarm.run, folder, minutes, "hf_made_up")
        stack.callback(monitored.process.kill)
        parts = {"draw 1": 0.35, "kill": 0.4, "away": 0.5, "draw 2": 0.7}
        next_fault, next_look = LEAST_S, 0.0
        while (now := time.time() - trainers.began) < 60 * minutes + PATIENCE_S:
            if now > 60 * minutes and not parts and monitored.accused() == [LIAR]:
                break
            trainers.step()
            if now > next_fault:
                faults.append({"where": r"^(GET|POST|PUT) ", **dice.choice(FAULTS)})
                hub.faults.append(Fault(**faults[-1], seconds=FAULT_S))
                next_fault = now + FAULT_S + dice.expovariate(1 / 30)
            if now > next_look:
                monitored.look(trainers.began)
                next_look = now + 15
            for part in [part for part, at in parts.items() if now > at * 60 * minutes]:
                if part == "kill":
                    monitored.kill()
                    monitored.start()
                elif part == "away":
                    _be_away(hub, trainers, 5 * minutes)
                else:
                    hub.faults.clear()
                    drawn[part] = monitored.draw(folder / part)
                    if drawn[part] is None:
                        continue  # it is drawn once a checkpoint is there
                del parts[part]
            time.sleep(0.5)
        accused = monitored.accused()
        trainers.end()
        swarm.ask_to_stop()
        _end(liar)
        code = monitored.leave()
        hub.faults.clear()
        drawn["draw 3"] = monitored.draw(folder / "draw 3")
    return report(folder, swarm, trainers, monitored, code) | {
        "accused": accused, "drawn": drawn, "faults": faults,
    }  # fmt: skip


def report(folder: Path, swarm: LocalSwarm, trainers: Trainers, monitored: Monitored, code: int) -> dict:
    """Return what was seen, after the end."""
    own = {name: peer.folder for name, peer in swarm.peers.items()} | {LIAR: folder / LIAR}
    events = {name: [event for start in read_starts(path) for event in start] for name, path in own.items()}
    with closing(MonitorDatabase(monitored.folder / "monitor.sqlite")) as database:
        credited = {one.user: one.samples for one in contributions(database, time.time(), least_s=0.0)}
        checkpoints = [
            dict(row) for row in database.rows("SELECT epoch, made, bytes, revision, figures FROM checkpoints")
        ]
        alarms = [dict(row) for row in database.rows("SELECT * FROM alarms ORDER BY since")]
    for checkpoint in checkpoints:
        checkpoint["figures"] = json.loads(checkpoint["figures"] or "null")
    ended = [event["epoch"] for each in events.values() for event in each if event["event"] == "epoch"]
    status = json.loads((monitored.folder / "status.json").read_text())
    return {
        "acts": trainers.acts,
        "epochs": max(ended, default=0),
        "failed": {name: [e["error"] for e in each if e["event"] == "failed"] for name, each in events.items()},
        "computed": {name: sum(map(samples_in, read_starts(path))) for name, path in own.items()},
        "credited": credited, "checkpoints": checkpoints, "alarms": alarms, "exit": code,
        "states": {peer["name"]: peer["state"] for peer in status["peers"]}, "sizes": monitored.sizes,
    }  # fmt: skip


def _lying(run: str, folder: Path) -> subprocess.Popen:
    PeerSettings(run=run, name=LIAR, host="127.0.0.1", batch_size=8).save(_made(folder) / SETTINGS)
    script = Path(__file__).with_name("boasting_peer.py")
    lying = subprocess.Popen([sys.executable, str(script), str(folder)], stdin=subprocess.PIPE)
    lying.stdin.write(b"\n")  # no Hub token
    lying.stdin.flush()
    return lying


def _end(lying: subprocess.Popen) -> None:
    with suppress(BrokenPipeError):
        lying.communicate(timeout=120)


def _be_away(hub: Hub, trainers: Trainers, seconds: float) -> None:
    with hub.away():
        until = time.time() + seconds
        while time.time() < until:
            trainers.step()
            time.sleep(0.5)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    print(json.dumps(play(Path(sys.argv[1]).resolve(), float(sys.argv[2])), indent=1))
