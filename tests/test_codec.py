import subprocess
import sys

import numpy as np
import pytest
import torch
from hivemind.compression import NoCompression, Uniform8BitQuantization, serialization
from hivemind.compression.base import CompressionInfo
from hivemind.compression.floating import Float16Compression
from hivemind.compression.serialization import deserialize_torch_tensor, serialize_torch_tensor
from hivemind.proto import runtime_pb2

from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.averaging import codec
from dalle_lib.swarm.averaging.codec import Float16, FourBits, Uncompressed, Uniform8Bit
from dalle_lib.swarm.process.events import read_events
from dalle_lib.swarm.process.join import SETTINGS

STOCK_DECODES = tuple(int(part) for part in np.__version__.split(".")[:2]) < (2, 4)
STOCK_WARNS = pytest.mark.filterwarnings(
    "ignore:.*quantize_per_tensor:UserWarning", "ignore:.*not writable:UserWarning"
)
BOTH = pytest.mark.parametrize("ours", [Uniform8Bit(), Float16()], ids=["8 bits", "16 bits"])
ALL = pytest.mark.parametrize("ours", [FourBits(), Uniform8Bit(), Float16()], ids=["4 bits", "8 bits", "16 bits"])


def message(values: torch.Tensor, ours=None) -> runtime_pb2.Tensor:
    return (ours or Uniform8Bit()).compress(values, CompressionInfo.from_tensor(values))


@pytest.fixture
def installed(monkeypatch):
    """Puts our codecs into hivemind's registry until the test ends."""
    monkeypatch.setattr(serialization, "_BASE_COMPRESSION_TYPES", dict(serialization._BASE_COMPRESSION_TYPES))
    codec.install()


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_values_survive_within_the_step_of_the_levels(dtype, ours):
    torch.manual_seed(0)
    values = torch.randn(7, 1001).to(dtype)
    decoded = ours.extract(message(values, ours))
    assert decoded.dtype == dtype
    assert decoded.shape == values.shape
    assert (decoded - values).float().norm() / values.float().norm() < (0.1 if type(ours) is FourBits else 0.0075)


@ALL
@pytest.mark.parametrize(
    "values",
    [torch.zeros(5), torch.full((3, 2), 7.0), torch.tensor([2.5]), torch.tensor(-2.5), torch.empty(0, 3)],
    ids=["zeros", "constant", "one element", "no dimension", "empty"],
)
def test_degenerate_tensors_are_exact(values, ours):
    assert torch.equal(ours.extract(message(values, ours)), values)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.randn(100_000).exp(),
        lambda: torch.randn(100_000).exp().bfloat16().float(),  # as gradients under autocast are
        lambda: torch.randn(100_000).relu(),
    ],
    ids=["log-normal", "bfloat16", "half are zeros"],
)
def test_the_mean_is_kept(draw):
    torch.manual_seed(0)
    values = draw()
    assert Uniform8Bit().extract(message(values)).double().mean().item() == pytest.approx(
        values.double().mean().item(), rel=1e-4
    )


@BOTH
def test_a_strided_tensor_that_needs_gradients_is_sent_as_it_reads_and_stays_unchanged(installed, ours):
    values = torch.randn(6, 8).T.requires_grad_()
    copy = values.detach().clone()
    sent = message(values, ours)
    decoded = deserialize_torch_tensor(sent)
    assert torch.equal(values, copy)
    assert values.requires_grad
    assert not decoded.requires_grad
    assert (decoded - values).norm() / values.norm() < 0.05


def relative_error(codec_of_sender, values: torch.Tensor) -> float:
    """Return the norm of the error divided by the norm of the deviations from the mean."""
    sent = codec_of_sender.compress(values, CompressionInfo.from_tensor(values))
    lost = Uniform8Bit().extract(sent).double() - values.double()
    return float(lost.norm() / (values.double() - values.double().mean()).norm())


@STOCK_WARNS
@pytest.mark.parametrize(
    ("draw", "max_loss", "share_of_stock"),
    [
        (lambda: torch.randn(2**19), 0.0066, 0.45),  # Panter and Dite's limit for 256 levels is 0.0064
        (lambda: torch.randn(2**19).bfloat16().float(), 0.0066, 0.45),
        (lambda: torch.distributions.StudentT(3.0).sample((2**19,)), 0.014, 0.1),
        (lambda: torch.distributions.StudentT(1.5).sample((2**19,)), 0.014, 0.05),
        (lambda: torch.randn(2**19) * (2 * torch.randn(2**19)).exp(), 0.014, 0.05),
        (lambda: 100 + torch.randn(2**19), 0.0068, 0.45),
        (lambda: 5e37 * torch.randn(2**17), 0.0068, None),
        (lambda: 1e-30 * torch.randn(2**17), 0.0068, None),
    ],
    ids=["gaussian", "bfloat16", "student 3", "student 1.5", "by log-normal", "far from zero", "huge", "tiny"],
)
def test_less_is_lost_than_by_hiveminds_codec_above_all_in_heavy_tails(draw, max_loss, share_of_stock):
    torch.manual_seed(0)
    for values in (draw() for _ in range(8)):  # the few largest values, half of the norm, differ from draw to draw
        lost = relative_error(Uniform8Bit(), values)
        assert lost < max_loss
        if share_of_stock is not None:
            assert lost < share_of_stock * relative_error(Uniform8BitQuantization(), values)


def test_one_value_among_zeros_and_opposite_extremes_arrive_as_they_are():
    values = torch.zeros(100_000)
    values[4321] = -0.7
    assert torch.equal(Uniform8Bit().extract(message(values)), values)
    largest = torch.finfo(torch.bfloat16).max  # their difference exceeds float32
    values = torch.tensor([largest] + 9 * [-largest])
    assert torch.equal(Uniform8Bit().extract(message(values)), values)


@STOCK_WARNS
@pytest.mark.parametrize(
    ("ours", "stock"), [(Uniform8Bit(), Uniform8BitQuantization()), (Float16(), Float16Compression())], ids=str
)
def test_we_decode_what_hivemind_encodes_and_it_decodes_what_we_encode(ours, stock):
    torch.manual_seed(0)
    values = torch.randn(33, 91)
    theirs, own = message(values, stock), message(values, ours)
    assert theirs.compression == own.compression
    assert (theirs.size, theirs.dtype, len(theirs.buffer)) == (own.size, own.dtype, len(own.buffer))
    assert (ours.extract(theirs) - values).norm() / values.norm() < 0.05
    if STOCK_DECODES or stock.compression_type == runtime_pb2.FLOAT16:
        for sent in theirs, own:
            assert torch.equal(ours.extract(sent), stock.extract(sent))


@ALL
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_not_sent(bad, ours):
    with pytest.raises(ValueError, match="NaN"):
        message(torch.tensor([1.0, bad]), ours)


@ALL
def test_integers_are_not_sent_in_fewer_bits(ours):
    with pytest.raises(ValueError, match="but this is int64"):
        message(torch.ones(3, dtype=torch.int64), ours)


def change(**fields):
    """Return a function that sets these fields of a message; a function as the value gets the old buffer."""

    def apply(sent: runtime_pb2.Tensor) -> None:
        for name, value in fields.items():
            if name == "size":
                sent.ClearField("size")
                sent.size.extend(value)
            else:
                setattr(sent, name, value(sent.buffer) if callable(value) else value)

    return apply


ANY = {
    "short": (change(buffer=lambda buffer: buffer[:-1]), "bytes: its shape"),
    "long": (change(buffer=lambda buffer: buffer + b"\0"), "bytes: its shape"),
    "nothing": (change(buffer=b""), "bytes: its shape|0 levels"),
    "another shape": (change(size=[10, 2]), "bytes: its shape"),
    "a huge shape": (change(size=8 * [2**32 - 1]), "expected at most"),
    "a huge shape of nothing": (change(size=[0, 2**16, 2**16, 2**31]), "expected at most"),
    "very many dimensions": (change(size=[10] + 10_000 * [1]), "at most"),
    "no dtype": (change(dtype="nn"), "dtype 'nn': expected one of"),
    "another dtype": (change(dtype="complex64"), "dtype 'complex64': expected one of"),
    "asks for gradients": (change(requires_grad=True), "asks for gradients"),
}
IN_8 = {
    "a huge codebook": (change(buffer=lambda buffer: b"\xff" * 7 + b"\x7f" + buffer[8:]), "expected 1 to 256"),
    "a negative codebook": (change(buffer=lambda buffer: b"\xff" * 8 + buffer[8:]), "expected 1 to 256"),
    "no codebook": (change(buffer=lambda buffer: bytes(8) + buffer[-10:]), "0 levels"),
    "NaN": (change(buffer=lambda buffer: buffer[:8] + np.float32("nan").tobytes() + buffer[12:]), "NaN"),
    "beyond the dtype": (
        change(dtype="float16", buffer=lambda buffer: buffer[:8] + np.float32(1e5).tobytes() + buffer[12:]),
        "NaN",
    ),
    "a level too many": (
        change(buffer=lambda buffer: (3).to_bytes(8, "little") + buffer[8:20] + bytes([0, 1, 2, 3, 0, 0, 0, 0, 0, 0])),
        "level 3 in a message whose codebook has 3 entries",
    ),
}
IN_4 = {
    "a negative scale": (change(buffer=lambda buffer: buffer[:9] + b"\xbf" + buffer[10:]), "negative scale"),
    "NaN": (change(buffer=lambda buffer: buffer[:8] + b"\xc0\x7f" + buffer[10:]), "NaN"),
    "beyond the dtype": (change(dtype="float16", buffer=lambda buffer: buffer[:8] + b"\x80\x57" + buffer[10:]), "NaN"),
}
IN_16 = {"NaN": (change(buffer=np.array([np.nan] * 10, np.float16).tobytes()), "NaN")}
PLAIN = {"NaN": (change(buffer=np.array([np.nan] * 10, np.float32).tobytes()), "NaN")}
MALFORMED = [
    pytest.param(ours, *case, id=f"{type(ours).__name__}, {name}")
    for ours, own in ((FourBits(), IN_4), (Uniform8Bit(), IN_8), (Float16(), IN_16), (Uncompressed(), PLAIN))
    for name, case in {**ANY, **own}.items()
]


@pytest.mark.parametrize(("ours", "spoil", "match"), MALFORMED)
def test_malformed_messages_are_refused_with_a_reason(ours, spoil, match):
    bad = message(torch.randn(10), ours)
    spoil(bad)
    with pytest.raises(ValueError, match=match):
        ours.extract(bad)


@pytest.mark.parametrize(
    "values",
    [torch.arange(6, dtype=torch.uint8).reshape(2, 3), torch.tensor(7), torch.randn(4, 2).bfloat16(), torch.empty(0)],
    ids=["bytes", "a number", "bfloat16", "empty"],
)
def test_state_that_newcomers_download_is_exact(installed, values):
    assert torch.equal(deserialize_torch_tensor(message(values, NoCompression())), values)


def test_our_codecs_are_what_hivemind_uses_once_installed_and_other_compressions_are_refused(installed):
    values = torch.randn(1000)
    for ours in FourBits(), Uniform8Bit(), Float16():
        bad = message(values, ours)
        assert torch.equal(deserialize_torch_tensor(bad), ours.extract(bad))
        bad.buffer = bad.buffer[:-1]
        with pytest.raises(ValueError, match="bytes: its shape"):
            deserialize_torch_tensor(bad)
    for name in "MEANSTD_16BIT", "QUANTILE_8BIT", "BLOCKWISE_8BIT":
        compression = runtime_pb2.CompressionType.Value(name)
        with pytest.raises(ValueError, match=f"{name} message: expected UNIFORM_8BIT, FLOAT16, NONE"):
            deserialize_torch_tensor(runtime_pb2.Tensor(compression=compression))
        with pytest.raises(ValueError, match=name):
            serialize_torch_tensor(values, compression)


def test_half_a_byte_a_value_in_messages_that_hivemind_refuses():
    sent = message(torch.randn(1000), FourBits())
    assert len(sent.buffer) == 8 + 8 * 2 + 500
    with pytest.raises((ValueError, TypeError), match=r"buffer is smaller|0-dimensional"):  # as numpy is old or new
        Uniform8BitQuantization().extract(sent)


@pytest.mark.parametrize("broken", [FourBits, Uniform8Bit, Float16, Uncompressed])
def test_install_fails_where_a_codec_does_not_work(installed, monkeypatch, broken):
    name = "4 bits" if broken is FourBits else runtime_pb2.CompressionType.Name(broken.compression_type)
    monkeypatch.setattr(broken, "extract", lambda self, sent: torch.zeros(tuple(sent.size)))
    with pytest.raises(RuntimeError, match=f"{name} loses 100% .* does not join"):
        codec.install()


BROKEN_PEER = """
import sys
from pathlib import Path
import numpy as np, torch
from dalle_lib.swarm.averaging import codec
from dalle_lib.swarm.peer import main as roles
codec.quantize = lambda values: (torch.zeros(len(values), dtype=torch.uint8), np.zeros(256, np.float32))
roles.main(Path(sys.argv[1]))
"""


def test_a_peer_whose_codec_does_not_work_refuses_to_join(swarm_folder):
    PeerSettings(run="emoji-mini").save(swarm_folder / SETTINGS)
    command = [sys.executable, "-c", BROKEN_PEER, str(swarm_folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as peer:
        peer.stdin.write(b"\n")
        peer.stdin.flush()
        assert peer.wait(timeout=120) == 1
    (event,) = read_events(swarm_folder)
    assert event["event"] == "failed"
    assert "UNIFORM_8BIT loses 100% of a tensor on this machine" in event["error"]
