"""Files, settings and cards that cannot be are refused by name, and before memory is taken for what they claim."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_models import SMALL

from dalle_lib.checkpoint import load_model, save_tensors
from dalle_lib.files import BrokenFile
from dalle_lib.inference.captions import TrainingCaptions
from dalle_lib.inference.drawing import require_same_codes
from dalle_lib.inference.published import load_published
from dalle_lib.inference.settings import Settings
from dalle_lib.model import DALLE, ModelConfig
from dalle_lib.notebook_run import execute
from dalle_lib.optimizer import LAMB8bit
from dalle_lib.run import RunCard
from dalle_lib.streaming import CaptionTokenizer, read_codes
from dalle_lib.swarm import LocalSwarm, Peer, PeerSettings, private_swarm
from dalle_lib.swarm.peer.snapshot import Snapshot
from dalle_lib.swarm.peer.state import read_state
from dalle_lib.swarm.process.local import MARK
from dalle_lib.vqgan import VQGANConfig, convert_vqgan, load_vqgan


def safetensors(file: Path, metadata: dict, **tensors) -> Path:
    save_tensors(file, tensors or {"x": torch.zeros(1)}, {name: json.dumps(told) for name, told in metadata.items()})
    return file


LARGE = dataclasses.asdict(ModelConfig.paper()) | {"dim": 2**16, "dim_head": 2**16}
CLAIMS = [
    (load_vqgan, {"vqgan": {"res_blocks": 10**7}}, r"res_blocks must be a whole number from 0 to 64, but is 10000000"),
    (load_vqgan, {"vqgan": {"channel_mult": [1] * 10**4}}, r"channel_mult must hold 1 to 8 whole numbers"),
    (load_vqgan, {"vqgan": {"channels": 33}}, r"33.*cannot be"),
    (load_vqgan, {"vqgan": {"colour": 1}}, r"unexpected keyword argument 'colour'"),
    (load_vqgan, {"vqgan": [1]}, r"has a configuration that cannot be: .* it holds \[1\]"),
    (load_vqgan, {}, r"is not a VQ-GAN of .* it lacks encoder"),
    (load_model, {"config": LARGE}, r"is not a model of .* it lacks transformer"),
    (load_model, {"config": LARGE | {"depth": 10**7}}, r"depth must be at most 4,096"),
    (load_model, {}, r"x\.safetensors holds no configuration"),
    (lambda file: CaptionTokenizer(file, 4), {}, r"x\.safetensors cannot be read as a tokenizer"),
    (read_codes, {}, r"x\.safetensors cannot be read as Parquet"),
    (lambda file: load_published(file.rename(file.with_suffix(".pt")), SMALL), {}, r"x\.pt cannot be read as a check"),
]


@pytest.mark.parametrize(("read", "metadata", "told"), CLAIMS)
def test_a_small_file_that_claims_much_is_refused_by_its_name_and_costs_no_memory(read, metadata, told, tmp_path):
    """Without a look at the header first, each would take gigabytes or minutes: the test would hang."""
    with pytest.raises(BrokenFile, match=told):
        read(safetensors(tmp_path / "x.safetensors", metadata))


def replace(old: object, new: str) -> dict:
    return {"type": "Replace", "pattern": old, "content": new}


TOKENIZERS = [
    ([], "cannot be read as a tokenizer .*expected a JSON object"),
    ({"normalizer": replace({"String": "a"}, "a" * 1000)}, "caption at most 200 times longer, but got 1000"),
    ({"normalizer": [replace({"String": "a"}, "a" * 50)] * 2}, "caption at most 200 times longer, but got 2500"),
    (
        {"normalizer": {"precompiled_charsmap": "AAAAAGFh" + "YWFh" * 99}},
        "caption at most 200 times longer, but got 299",
    ),
    ({"pre_tokenizer": [{"type": "ByteLevel"}] * 8}, r"caption at most 200 times longer, but got \d+"),
    ({"added_tokens": [{"content": "a" * 10**6}]}, "added tokens of at most 1,000,000 letters after all steps"),
    (
        {"normalizer": replace({"String": "a"}, "b" * 100), "added_tokens": [{"content": "a" * 10_000}]},
        "added tokens of at most 1,000,000 letters after all steps",
    ),
    ({"model": {"type": "Unigram", "vocab": [["a" * 1001, 0.0]]}}, "at most 1,000 letters, but one has 1,001"),
    ({"model": {"type": "BPE", "vocab": {"a" * 1001: 0}}}, "at most 1,000 letters, but one has 1,001"),
    ({"model": {"type": "WordPiece", "max_input_chars_per_word": 10**9}}, "expected words of at most 200 letters"),
    ({"model": {"type": "WordPiece", "continuing_subword_prefix": "a" * 11}}, "and prefixes of 10"),
    ({"pre_tokenizer": [{"type": "Metaspace"}] * 11}, "at most 10 steps before the vocabulary, but got 12"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}}, "index out of bounds"),
    ({"normalizer": replace({"Regex": "(a+)+$"}, "b")}, "retry-limit-in-match over"),
]


@pytest.mark.parametrize(("changed", "told"), TOKENIZERS, ids=[told for _, told in TOKENIZERS])
def test_a_tokenizer_that_could_take_any_memory_or_panics_is_refused(mini, changed, told, tmp_path):
    """Without these bounds 30 kB make a caption 10**12 letters long, and the process aborts."""
    whole = json.loads(mini.path(mini.tokenizer).read_text())
    (tmp_path / "x.json").write_text(json.dumps(whole | changed if changed else changed))
    with pytest.raises(BrokenFile, match=told):
        CaptionTokenizer(tmp_path / "x.json", 4)(["a" * 99 + "b"])


@pytest.mark.parametrize(
    "words",
    [
        [1],
        {"things": 1},
        {"things": [1]},
        {"own_colours": []},
        {"own_colours": {"a": "b"}},
        {"things": ["a"] * 1001, "colours": ["b"] * 1000},
    ],
)
def test_lists_of_words_that_are_none_are_refused(mini, words, tmp_path):
    card = RunCard.load(mini.with_changes(pins={}).save(tmp_path)).with_changes(pins={})
    (tmp_path / card.data.train / "words.json").write_text(json.dumps(words))
    with pytest.raises(BrokenFile, match=r"words\.json cannot be read"):
        TrainingCaptions.of(card)


def test_a_vqgan_of_other_codes_than_the_models_is_refused():
    with pytest.raises(ValueError, match=r"run draws grids of .* but its VQ-GAN shows grids of 32 among 8192: get"):
        require_same_codes("run", SMALL, VQGANConfig())
    with pytest.raises(ValueError, match="shows grids of 64 among"):
        require_same_codes("run", ModelConfig.emoji(), dataclasses.replace(VQGANConfig.emoji(), resolution=512))


def make_pipe(file: Path) -> None:
    os.mkfifo(file)


def make_endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


def make_huge(file: Path) -> None:
    file.touch()
    os.truncate(file, 2**40)


@pytest.mark.parametrize(
    "read", [RunCard.load, lambda file: CaptionTokenizer(file, 4), lambda file: execute(file, file, file, print)]
)
@pytest.mark.parametrize("make", [make_pipe, make_endless, make_huge])
def test_nobody_waits_for_the_end_of_a_file_that_has_none(read, make, tmp_path):
    make(tmp_path / "x.json")
    with pytest.raises(BrokenFile, match=r"x\.json .*(is a folder or a pipe|more than (1,048,576|16,777,216) bytes)"):
        read(tmp_path / "x.json")


@pytest.mark.parametrize("make", [make_pipe, make_endless])
def test_a_checkpoint_without_end_is_not_converted(make, tmp_path):
    make(tmp_path / "x.ckpt")
    with pytest.raises(BrokenFile, match=r"x\.ckpt .* is a folder or a pipe"):
        convert_vqgan(tmp_path / "x.ckpt", tmp_path / "out")


GROUP = {"lr": 0.1, "betas": (0.9, 0.95), "params": [0]}
WEIGHTS, STATISTICS = [torch.ones(3)], {"state": {0: {"first": torch.ones(3)}}, "param_groups": [GROUP]}
OWN = Snapshot(0, WEIGHTS, STATISTICS)
ABOUT = {"epoch": 5, "param_groups": [GROUP]}
GOOD = {"parameter.0": torch.zeros(3), "first.0": torch.ones(3)}
GROUPS = [[], {}, None, [{}], 10**9, [GROUP, GROUP], [GROUP | {"params": [1]}], [GROUP | {"lr": math.nan}]]
STATES = [
    ({"parameter.0": torch.ones(3), "first.0": torch.ones(3)}, {}, r"its metadata lack epoch, param_groups"),
    ({"parameter.0": torch.ones(3)}, ABOUT, r"it lacks first\.0"),
    ({"parameter.0": torch.ones(4), "first.0": torch.ones(3)}, ABOUT, r"expected parameter\.0 to be .*3.* got .*4"),
    ({"parameter.0": torch.full((3,), math.nan), "first.0": torch.ones(3)}, ABOUT, r"it holds NaN or infinity"),
    ({"parameter.0": torch.ones(3), "first.0": torch.full((3,), math.inf)}, ABOUT, r"it holds NaN or infinity"),
    *(
        (GOOD | {name: torch.ones(3)}, ABOUT, rf"it has an unknown '{name}'")
        for name in ("what", "second.0", "first.7", "first.-1", "parameter.1")
    ),
    *((GOOD, ABOUT | {"param_groups": groups}, r"expected param_groups such as .*0\.95") for groups in GROUPS),
    *((GOOD, ABOUT | {"epoch": epoch}, r"expected an epoch in its metadata") for epoch in (10**12, -1, "x")),
]


@pytest.mark.parametrize(("tensors", "metadata", "told"), STATES)
def test_a_peers_broken_state_is_told_with_what_to_do(tensors, metadata, told, tmp_path):
    file = safetensors(tmp_path / "state", metadata, **tensors)
    with pytest.raises(BrokenFile, match=rf"state cannot be read as .*{told}.*\. Remove it: `dalle-lib join`"):
        read_state(file, OWN)
    others = ABOUT | {"param_groups": [GROUP | {"lr": 1e9, "betas": (-1.0, 7.0)}]}
    back = read_state(safetensors(file, others, **GOOD), OWN)
    assert (back.epoch, back.parameters[0].tolist()) == (5, [0, 0, 0])
    assert back.statistics["param_groups"] == [GROUP], "settings are the run's, whatever a checkpoint from the Hub says"
    for broken in b"", b"garbage " * 20, file.read_bytes()[:-1]:
        file.write_bytes(broken)
        with pytest.raises(BrokenFile, match="state cannot be read"):
            read_state(file, OWN)


def lamb(**settings) -> LAMB8bit:
    return LAMB8bit([torch.nn.Parameter(torch.ones(3))], **settings)


def batch_of_none() -> None:
    DALLE(SMALL)(torch.zeros(0, SMALL.text_length, dtype=torch.long), torch.zeros(0, SMALL.grid**2, dtype=torch.long))


CALLS = {
    "lr": (lambda: lamb(lr=math.nan), "lr=nan"),
    "betas": (lambda: lamb(betas=(5, -3)), r"betas=\(5, -3\)"),
    "max_grad_norm": (lambda: lamb(max_grad_norm=0), "max_grad_norm=0"),
    "load_state_dict": (lambda: lamb().load_state_dict({}), "expected a dictionary with 'state' and 'param_groups'"),
    "a batch of 0": (batch_of_none, "expected at least one caption, but got a batch of 0"),
    "a large seed": (lambda: Settings(seed=2**63).check(), r"whole number from 0 to 2\*\*63 - 1, but got 922"),
    "a peer's seed": (lambda: PeerSettings(run="r", seed=-1), r"seed must be a whole number .* but is -1"),
    "a VQ-GAN's sizes": (lambda: VQGANConfig(latent_dim=-1), "latent_dim must be a whole number from 1"),
    "its levels": (lambda: VQGANConfig(channel_mult=()), r"channel_mult must hold 1 to 8 .* but is \(\)"),
    "its resolution": (lambda: VQGANConfig(resolution=60), "resolution must be a multiple of 8, .* but is 60"),
    "its pictures": (lambda: VQGANConfig(resolution=4096), "channels must be at most 8 at .* of 4096, but is 128"),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_call_with_what_cannot_be_says_what_was_expected_and_what_came(what):
    call, told = CALLS[what]
    with pytest.raises(ValueError, match=told):
        call()


WRONG_TYPES = """
from dalle_lib.checkpoint import configured
from dalle_lib.inference.settings import Settings
from dalle_lib.model import ModelConfig
from dalle_lib.notebook_run import execute
from dalle_lib.optimizer import LAMB8bit
from dalle_lib.swarm import LocalSwarm, Peer, PeerSettings, private_swarm
import torch

sizes = vars(ModelConfig.paper())
for call in (
    lambda: Settings(seed=1.5).check(),
    lambda: PeerSettings(run="r", seed=1.5),
    lambda: LAMB8bit([torch.nn.Parameter(torch.ones(3))]).load_state_dict([1]),
    lambda: ModelConfig(**{**sizes, "depth": 2.5}),
    lambda: configured("x.safetensors", '{"dim": 4}', ModelConfig),
    lambda: configured("x.safetensors", '{"dim": ', ModelConfig),
):
    try:
        call()
        print("accepted")
    except ValueError as error:
        print(error)
"""


def test_values_of_wrong_types_are_told_where_nothing_checks_types():
    """In a process of its own: in this one, types are checked by beartype, which users do not have."""
    command = [sys.executable, "-c", WRONG_TYPES]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    expected = [
        "expected seed to be a whole number from 0 to 2**63 - 1, but got 1.5.",
        "seed must be a whole number from 0 to 2**63 - 1, but is 1.5.",
        "expected a dictionary with 'state' and 'param_groups', but got [1].",
        "ModelConfig.depth must be a positive whole number, but is 2.5.",
        "x.safetensors has a configuration that cannot be: ModelConfig.__init__() missing 7 required keyword-only",
        "x.safetensors has a configuration that cannot be: Expecting value: line 1 column 9",
    ]
    assert [line[: len(start)] for line, start in zip(told, expected, strict=True)] == expected


CARDS = [
    ({"tokenizer": {"name": "..", "sha256": "0" * 64}}, "tokenizer.name: "),
    ({"vqgan": {"name": ".hidden", "sha256": "0" * 64}}, "vqgan.name: "),
    ({"clip": "../clip"}, "clip: "),
    ({"clip": "owner/clip"}, "pins must name the commit of the CLIP owner/clip"),
    ({"pins": {"clip": "main"}}, "pins.clip: "),
    ({"seed": 0.5, "name": "a b"}, "name: .*; seed: "),
]


@pytest.mark.parametrize(("fields", "told"), CARDS)
def test_a_card_names_what_is_beside_it_or_pinned(mini, fields, told):
    with pytest.raises(ValueError, match=rf"^no run card can be so: {told}[^\n]*$"):
        mini.with_changes(**fields)


def test_a_private_swarm_removes_what_one_has_made_and_nothing_else(mini, tmp_path, monkeypatch):
    folder = tmp_path / "swarm"
    monkeypatch.setattr(LocalSwarm, "start", lambda *_: LocalSwarm(folder, "run", bootstrap=Peer(folder)))
    monkeypatch.setattr(LocalSwarm, "add", lambda *_: None)
    private_swarm(mini, folder)
    for name in "run/run.json", "peers/ada/model", "mine/kept":
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("x")
    private_swarm(mini, folder)
    assert [file.name for file in folder.rglob("*") if file.is_file() and file.name != MARK] == ["kept"]
    (folder / MARK).unlink()
    (folder / "run").mkdir()
    with pytest.raises(ValueError, match=r"swarm holds run, which none has made\. Nothing was removed"):
        private_swarm(mini, folder)
    assert (folder / "run").is_dir()


def test_what_others_said_in_a_log_does_not_reach_the_terminal_as_it_is(tmp_path):
    (tmp_path / "peer.log").write_text("ERROR: \x1b[2J\x1b]0;name\x07\n  File 'x', line 1\u202e\n")
    assert Peer(tmp_path).log_tail() == "ERROR: \\x1b[2J\\x1b]0;name\\x07\n  File 'x', line 1\\u202e"
