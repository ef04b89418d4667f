"""Swarms of one-hot peers (tests/one_hot_peer.py): each update shows the weight of every peer's gradient."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor
from waiting import wait_until

from dalle_lib.auth import AccessToken, Authority, Identity, Role
from dalle_lib.rehearsal.links import Plug
from dalle_lib.run import RunCard
from dalle_lib.swarm.peer.membership import IDENTITY, TOKEN
from dalle_lib.swarm.process.events import EventReader

SCRIPT = Path(__file__).parent / "one_hot_peer.py"
GO = "go"
"""File whose appearance lets peers begin; it holds their number."""
EPOCH_SAMPLES = 256


def one_hot_card(card: RunCard, total_epochs: int = 1000, **averaging) -> RunCard:
    """Return a card for quick epochs of one-hot peers, which wait for each average before they go on."""
    quick = {"target_batch_size": EPOCH_SAMPLES, "matchmaking_s": 1.5, "timeout_s": 8.0, "delayed": False}
    return card.with_changes(
        optimizer={**card.optimizer.model_dump(), "total_epochs": total_epochs},
        averaging={**card.averaging.model_dump(), **quick, **averaging},
    )


@dataclass
class OneHotPeer:
    """One peer's process, and the events that it has written."""

    folder: Path
    index: int
    process: subprocess.Popen
    reader: EventReader

    def events(self, kind: str) -> list[dict]:
        """Return its events of one kind since it started."""
        return [event for event in self.reader.starts()[-1] if event["event"] == kind]

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return self.process.poll() is None

    @property
    def peer_id(self) -> str:
        """The id by which other peers know it."""
        return self.events("joined")[0]["peer_id"]

    @property
    def epoch(self) -> int:
        """The epoch that it has reached."""
        return max((event["epoch"] for event in self.events("update")), default=0)

    def states(self) -> list[tuple[int, Tensor]]:
        """Return (epoch, sum of all updates by tensor and peer) for each state of its parameters, in order."""
        return [(event["epoch"], torch.tensor(event["values"])) for event in self.events("update")]

    def after(self, updates: int) -> Tensor:
        """Return the last state of its parameters after `updates` updates, by tensor and peer."""
        return [values for _, values in self.states() if round(float(values.sum(1).mean())) == updates][-1]

    def weights(self, update: int) -> Tensor:
        """Return the weight of each peer's gradient in its update of this number, from 1, by tensor and peer."""
        return self.after(update) - (self.after(update - 1) if update > 1 else 0.0)

    def rounds(self) -> dict[int, dict]:
        """Return its report of each round of gradients, by epoch."""
        return {event["epoch"]: event for event in self.events("Round")}

    def shares(self, epoch: int, peers: "list[OneHotPeer]") -> Tensor:
        """Return the share of each of these peers in an epoch's samples, as it reports them."""
        counted = self.rounds()[epoch]["counted"]
        return torch.tensor([counted.get(peer.peer_id, 0.0) for peer in peers]) / sum(counted.values())

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and to all processes that it has started."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kill it and all that it has started, so that it cannot say goodbye to the others."""
        self.send(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Make it leave, and wait until it has."""
        self.process.stdin.close()
        self.process.wait(60)


@dataclass
class OneHotSwarm:
    """Peers of one run on this machine; others find it through the first. The end of the `with` block kills all."""

    card: RunCard
    folder: Path
    peers: list[OneHotPeer] = field(default_factory=list)
    authority: Authority | None = None
    """Issues an access token to every peer, in a run with members."""

    def __enter__(self) -> "OneHotSwarm":
        self.card.save(self.folder / "run")
        return self

    def __exit__(self, *_error) -> None:
        for peer in self.peers:
            if peer.is_running:
                peer.kill()
            peer.process.stdin.close()

    def add(self, found_by: int = 0, plug: Plug | None = None, script: Path = SCRIPT, **settings) -> OneHotPeer:
        """Start the next peer, which finds the others by peer number `found_by`; settings are those of its script.

        With a `plug`, all that it sends and gets passes the plug's relay.
        """
        if plug is not None:
            settings |= {"port": plug.listens_on, "announce": [plug.announced_at]}
        index = len(self.peers)
        initial = self.peers[found_by].events("joined")[0]["addresses"] if self.peers else []
        folder = self.folder / f"peer{index}"
        folder.mkdir()
        if self.authority is not None:
            give_token(self.authority, self.card, folder, f"user{index}")
        places = {"run": str(self.folder / "run"), "go": str(self.folder / GO), "initial_peers": initial}
        (folder / "settings.json").write_text(json.dumps({"index": index, **places, **settings}))
        self.peers.append(OneHotPeer(folder, index, start_script(script, folder), EventReader(folder)))
        if plug is not None:
            plug.process = self.peers[-1].process.pid
        if index == 0:
            self.wait(lambda: self.peers[0].events("joined"))
        return self.peers[-1]

    def go(self) -> None:
        """Let the peers begin, once all have joined."""
        self.wait(lambda: all(peer.events("joined") for peer in self.peers))
        (self.folder / "ready").write_text(str(len(self.peers)))
        (self.folder / "ready").rename(self.folder / GO)

    def way_in(self) -> dict:
        """Return what a stranger knows of the run: its card, and the addresses and the id of the first peer."""
        first = self.peers[0].events("joined")[0]
        return {"run": str(self.folder / "run"), "initial_peers": first["addresses"], "victim": first["peer_id"]}

    def together(self, peers: list[OneHotPeer], after: int) -> list[int]:
        """Return the epochs after `after` in which, as all these peers report, the gradients of all of them counted."""
        if not all(peer.events("joined") for peer in peers):
            return []
        ids, rounds = {peer.peer_id for peer in peers}, [peer.rounds() for peer in peers]
        return [
            epoch
            for epoch in sorted(set.intersection(*map(set, rounds)))
            if epoch > after and all(ids <= {id for id, n in own[epoch]["counted"].items() if n > 0} for own in rounds)
        ]

    def wait_together(self, peers: list[OneHotPeer], after: int) -> int:
        """Wait for the first epoch in `together`, and return it."""
        self.wait(lambda: self.together(peers, after))
        return self.together(peers, after)[0]

    def wait_for_epoch(self, epoch: int, peers: list[OneHotPeer] | None = None) -> None:
        """Wait until these peers, or all, have reached an epoch."""
        self.wait(lambda: all(peer.epoch >= epoch for peer in peers or self.peers))

    def wait(self, condition: Callable[[], object], timeout_s: float = 240.0) -> None:
        """Wait until `condition` holds; fail with what all peers have written if it does not in time."""
        wait_until(condition, timeout_s, self.told, self._require_none_failed)

    def _require_none_failed(self) -> None:
        for peer in self.peers:
            ended = peer.process.poll()
            assert ended is None or ended <= 0, f"{peer.folder.name} failed:\n{self.told()}"

    def told(self) -> str:
        """Return the last lines of every peer's log and events."""
        return last_lines([peer.folder for peer in self.peers], ("output.txt", "peer.log", "events.jsonl"), 25)


def give_token(authority: Authority, card: RunCard, folder: Path, user: str, **changes) -> AccessToken:
    """Write an access token for the identity in that folder, which is made if missing, where a peer looks for it."""
    identity = Identity.load_or_create(folder / IDENTITY)
    options = {"role": Role.MEMBER, "run": card.name, "valid_for": timedelta(hours=1), **changes}
    token = authority.issue(user, public_key=identity.public_key, **options)
    (folder / TOKEN).write_bytes(token.to_bytes())
    return token


def start_script(script: Path, folder: Path) -> subprocess.Popen:
    """Start a peer's script on its folder, in a session of its own; its output goes to output.txt there."""
    with open(folder / "output.txt", "wb") as output:
        return subprocess.Popen(
            [sys.executable, script, folder],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def start_beside(script: Path, folder: Path, **settings) -> subprocess.Popen:
    """Start a script beside a run, with these settings in FOLDER/settings.json; its output is read through a pipe."""
    folder.mkdir(exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(settings))
    return subprocess.Popen(
        [sys.executable, script, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )


def last_lines(folders: list[Path], names: tuple[str, ...], count: int) -> str:
    """Return the last lines of these files of each folder, where they exist."""
    files = [folder / name for folder in folders for name in names]
    ends = {file: file.read_text(errors="replace").splitlines()[-count:] for file in files if file.exists()}
    return "\n".join("\n".join([f"{file}:", *lines]) for file, lines in ends.items())
