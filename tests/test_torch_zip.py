"""A checkpoint of torch that would take any memory or time is refused before it is unpickled; real ones are read."""

import pickle
import struct
import zipfile

import pytest
import torch

from dalle_lib import torch_zip
from dalle_lib.files import BrokenFile
from dalle_lib.inference.published import load_published
from dalle_lib.run import RunCard
from dalle_lib.torch_zip import require_plain
from dalle_lib.vqgan import convert_vqgan

MODEL = RunCard.load("emoji-mini").model
UNKNOWN = b"cnowhere\nKnown\n0"
"""Names a class that nobody has and drops it: torch then takes the file for one that needs another unpickler."""


def archive(folder, data: bytes):
    with zipfile.ZipFile(folder / "last.ckpt", "w") as parts:
        parts.writestr("archive/data.pkl", data)
        parts.writestr("archive/version", "3\n")
        parts.writestr("archive/byteorder", "little")
    return folder / "last.ckpt"


TWICE, PLACE = b"q\x01h\x01\x86", b"r" + struct.pack("<I", 250_000_000)
ENDLESS = {
    "a key of pairs of pairs": (b"\x80\x02}K\x01" + TWICE * 60 + b"K\x01s.", "tuples within tuples of more than"),
    "of an unknown class": (b"\x80\x02" + UNKNOWN + b"}K\x01" + TWICE * 60 + b"K\x01s.", "tuples within tuples"),
    "by doubling": (b"\x80\x02}K\x01" + b"2\x86" * 60 + b"K\x01s.", "tuples within tuples of more than"),
    "the same key again and again": (
        b"\x80\x02}0K\x01" + TWICE * 18 + b"q\x020}(" + b"h\x02K\x01" * 100 + b"u.",
        "tuples within tuples of more than",
    ),
    "a far place in memory": (b"\x80\x02" + UNKNOWN + b"}" + PLACE + b".", "keeps values where no pickle does"),
    "more is taken than there is": (b"\x80\x02\x86.", "takes more than there is"),
    "an end without a beginning": (b"\x80\x02t.", "ends what it has not begun"),
    "no pickle": (b"\x80\x02\xff", "at position 2, opcode"),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_would_never_end_or_take_any_memory_is_refused_in_a_line(what, tmp_path):
    """The first of these takes 2**60 steps, and has 600 bytes."""
    data, told = ENDLESS[what]
    file = archive(tmp_path, data)
    for read in (
        lambda: convert_vqgan(file, tmp_path / "out.safetensors"),
        lambda: load_published(file, MODEL),
    ):
        with pytest.raises(BrokenFile, match=rf"last\.ckpt cannot be read as a checkpoint of torch .*{told}"):
            read()


def test_a_long_pickle_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_zip, "MAX_PICKLE_BYTES", 10)
    with pytest.raises(ValueError, match="11 bytes beside its tensors, and at most 10 are read"):
        require_plain(archive(tmp_path, bytes(11)))


def test_a_checkpoint_from_before_torch_1_6_is_refused_with_advice(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(BrokenFile, match=r"torch 1\.6 or later wrote.*write it anew"):
        load_published(tmp_path / "old.pt", MODEL)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_real_checkpoints_are_plain(protocol, tmp_path):
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(500)))
    optimizer = torch.optim.AdamW([{"params": [p]} for p in model.parameters()], betas=(0.9, 0.95))
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    contents = {
        "state_dict": model.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "callbacks": {("a", "b"): {1, 2}, frozenset([1]): [torch.Size([1, 2])]},
    }
    torch.save(contents, tmp_path / "last.ckpt", pickle_protocol=protocol)
    require_plain(tmp_path / "last.ckpt")
    require_plain(archive(tmp_path, pickle.dumps([contents["callbacks"]] * 9, protocol)))
