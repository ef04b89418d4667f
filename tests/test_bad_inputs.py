"""What nobody can use is refused by one line that says where, what was expected and what came; nothing is half done."""

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch
from command_line import answer
from safetensors.torch import load_file, save_file

from dalle_lib.cli import COMMANDS
from dalle_lib.files import sha256_of

NOBODY = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWRy6EbDgUAKT1z9GKkD5x4G8yaJEsnhmBGPo3L5qGCY32"
LATIN = b'\xff\xfe{"a": 1}'


def as_integers(file: Path) -> None:
    config = json.loads((file.parent / "run.json").read_text())["model"]
    tensors = {name: tensor.float().int() for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"config": json.dumps(config)})


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


@pytest.fixture(scope="module")
def saved(mini, tmp_path_factory) -> Path:
    return mini.save(tmp_path_factory.mktemp("saved") / "run")


def change(run: Path, part: str, breaking) -> None:
    """Break a file of a run, and have the card name the broken one; with bytes, they become the file."""
    card = json.loads((run / "run.json").read_text())
    file = run / card[part]["name"]
    breaking(file) if callable(breaking) else file.write_bytes(breaking)
    card[part]["sha256"] = sha256_of(file)
    (run / "run.json").write_text(json.dumps(card))


RUNS = {
    "no checkpoint": (lambda run: (run / "emoji-mini.safetensors").unlink(), "emoji-mini.safetensors is not there"),
    "another checkpoint": (lambda run: cut(run / "emoji-mini.safetensors"), "is not the file that run 'emoji-mini'"),
    "an empty checkpoint": (lambda run: change(run, "checkpoint", b""), "cannot be read as safetensors (Error"),
    "a cut checkpoint": (lambda run: change(run, "checkpoint", cut), "emoji-mini.safetensors cannot be read as safe"),
    "whole numbers": (lambda run: change(run, "checkpoint", as_integers), "has head.bias in I32, no floating-point"),
    "a cut VQ-GAN": (lambda run: change(run, "vqgan", cut), "vqgan.safetensors cannot be read as safetensors"),
    "no tokenizer": (lambda run: change(run, "tokenizer", b'{"a": 1}'), "tokenizer.json cannot be read as a tokenizer"),
    "no CLIP": (lambda run: shutil.rmtree(run / "clip"), "the run's CLIP, the folder 'clip', is not beside its card"),
    "another CLIP": (lambda run: (run / "clip/config.json").write_text("{}"), "clip is not the folder that run"),
    "no text": (
        lambda run: (run / "run.json").write_bytes(LATIN),
        "run.json cannot be read as a run card ('utf-8' codec",
    ),
    "no card": (lambda run: (run / "run.json").write_text("[1]"), "run.json is no valid run card: "),
}


@pytest.mark.parametrize("what", RUNS)
def test_a_run_that_cannot_draw_is_told_by_the_name_of_its_file(what, saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved, "run")
    breaking, told = RUNS[what]
    breaking(Path("run"))
    assert told in answer(monkeypatch, "generate", "frog", "--run", "run", "--out", "pictures", "--device", "cpu")
    assert not Path("pictures").exists()


TYPED = [
    ("convert-vqgan none out", "none: No such file or directory"),
    (
        "convert-vqgan . out",
        ". cannot be read as a checkpoint of torch (expected a file, but it is a folder or a pipe)",
    ),
    ("convert-vqgan empty out", "empty cannot be read as a checkpoint of torch (it is empty)"),
    ("convert-vqgan text out", "text cannot be read as a checkpoint of torch (expected one that torch 1.6"),
    ("convert-vqgan five.ckpt out", "five.ckpt is not a VQ-GAN of "),
    ("convert-vqgan five.ckpt five.ckpt", "expected another file to write than five.ckpt, which is read"),
    ("convert-vqgan five.ckpt new/../five.ckpt", "expected another file to write than five.ckpt, which is read"),
    ("convert-vqgan five.ckpt new/folder/out", "five.ckpt is not a VQ-GAN of "),
    ("convert-vqgan five.ckpt .", "expected the .safetensors file to write, but . is a folder"),
    ("convert-vqgan five.ckpt text/out", "expected a folder to write to, but got text"),
    ("demo --notebook none.ipynb", "there is no file none.ipynb: name one with --notebook"),
    ("demo --minutes nan", "minutes to take part must be above 0, but are nan"),
    ("demo --minutes -1", "minutes to take part must be above 0, but are -1"),
    ("demo --minutes 0", "minutes to take part must be above 0, but are 0"),
    ("demo --minutes inf", "minutes to take part must be above 0, but are inf"),
    ("demo --late-s -5", "the seconds before the start must be at least 0, but are -5"),
    ("demo --out text", "expected a folder to write to, but got text"),
    ("demo --out kept", "kept/swarm holds run, which none has made. Nothing was removed"),
    ("demo --notebook text --out kept", "kept/swarm holds run, which none has made. Nothing was removed"),
    ("generate frog --out text", "expected a folder to write to, but got text"),
    ("generate \udcff", "holds bytes that are none: '\\udcff'"),
    ("doctor --folder peer", "settings.json cannot be read"),
    ("doctor --device tpu", "expected a device such as"),
    ("join --run emoji-mini --alone --folder text", "text is no folder that this program may write to"),
    (f"join --run emoji-mini --name {'x' * 300}", "expected a name of 1 to 64 letters"),
    ("join --run emoji-mini --name ../../x", "but got '../../x'"),
    ("join --run emoji-mini --batch-size 0", "batch_size must be a whole number from 1 to"),
    ("join --run emoji-mini --seed -1", "seed must be a whole number from 0"),
    ("join --run emoji-mini --max-minutes nan", "minutes to take part must be above 0"),
    ("memory list.json", "list.json: expected a config.json's text"),
    ("memory latin.json", "latin.json: 'utf-8' codec"),
    ("memory dalle.json", "but this config lacks dim, depth, heads"),
    ("memory words.json", "n_layer is a whole number"),
    ("memory gpt2 --mbps nan", "--mbps must be above 0 and finite"),
    ("memory gpt2 --teraflops inf", "--teraflops must be above 0 and finite"),
    ("status --folder text", "expected a folder of peers, but text is a file"),
]


@pytest.mark.parametrize(("typed", "told"), TYPED, ids=[typed[:50] for typed, _ in TYPED])
def test_a_mistake_in_typing_is_told_before_any_work(typed, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dalle_lib.demo.examine", lambda *_: pytest.fail("it was drawn before the mistake was told"))
    monkeypatch.setattr("dalle_lib.inference.TextToImage.from_run", lambda *_: pytest.fail("the model was loaded"))
    texts = {"text": "x", "empty": "", "list.json": "[1]", "dalle.json": '{"model_type": "dalle"}'}
    texts |= {"words.json": '{"model_type": "gpt2", "n_layer": "x"}', "peer/settings.json": "{}"}
    for name, text in (texts | {"kept/swarm/run/precious": "mine"}).items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    Path("latin.json").write_bytes(LATIN)
    torch.save({"state_dict": 5}, "five.ckpt")
    before = {file: file.is_file() and file.read_bytes() for file in Path().rglob("*")}
    assert told in answer(monkeypatch, *typed.split(" "))
    assert {file: file.is_file() and file.read_bytes() for file in Path().rglob("*")} == before


def test_the_exit_code_of_a_process_says_whose_turn_it_is(tmp_path):
    def ended(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "dalle_lib", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        return done.returncode, done.stderr

    assert ended("--version") == (0, "")
    closed = [
        sys.executable,
        "-c",
        "import sys; sys.stdout = None; from dalle_lib.cli import main; main()",
        "--version",
    ]
    assert subprocess.run(closed, capture_output=True, timeout=120, cwd=tmp_path).stderr == b""
    code, told = ended("convert-vqgan", "none", "out")
    assert (code, told.count("\n")) == (2, 1)
    code, told = ended("join", "--run", "emoji-mini", "--initial-peers", NOBODY)
    assert (code, told.count("\n")) == (1, 1)
    code, told = ended("convert-vqgan", "none", "out", "--debug")
    assert code == 2
    assert told.startswith("Traceback (most recent call last):")
    assert told.splitlines()[-1].startswith("dalle-lib: none: No such file")


def full() -> sqlite3.Error:
    """Return what SQLite raises when nothing more can be written."""
    with closing(sqlite3.connect(":memory:")) as data, pytest.raises(sqlite3.Error) as raised:
        data.executescript("PRAGMA max_page_count = 1; CREATE TABLE a (b); CREATE TABLE c (d)")
    return raised.value


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ValueError("a"), 2, "a"),
        (PermissionError(13, "Permission denied", "b"), 2, "b: Permission denied. Is this the right path"),
        (OSError(36, "File name too long", "c"), 2, "c: File name too long"),
        (OSError(28, "No space left on device", "d"), 1, "d: No space left on device"),
        (full(), 1, "database or disk is full: make room on the disk"),
        (ConnectionError("e"), 1, "e"),
        (FloatingPointError("f"), 1, "f"),
        (KeyError("g"), 1, "KeyError: 'g'. This is a fault of dalle-lib: the same command with --debug"),
        (ValueError("i" * 10**6), 2, "i" * 1000 + "..."),
        (AttributeError("h\nh"), 1, "AttributeError: h h. This is a fault"),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_error_of_every_command_is_one_line(command, error, code, told, monkeypatch):
    def fail(_):
        raise error

    monkeypatch.setattr(COMMANDS[command], "run", fail)
    needed = {
        "join": ["--run", "r"],
        "monitor": ["--run", "r"],
        "memory": ["gpt2"],
        "convert-vqgan": ["a", "b"],
        "auth-server": ["serve"],
    }
    needed = (needed | {"prepare": ["a", "b", "--vqgan", "emoji"], "run": ["check", "a"]}).get(command, [])
    assert f"dalle-lib: {told}" in answer(monkeypatch, command, *needed, code=code)
