"""The VQ-GAN against taming's own modules wired by hand, what its files may hold, and what its codes depend on."""

import os
import pickle
import sys
import types
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from taming.modules.diffusionmodules.model import Decoder, Encoder
from taming.modules.vqvae.quantize import GumbelQuantize
from torch import nn
from torch.nn import functional as F

from dalle_lib.checkpoint import load_tensors
from dalle_lib.files import BrokenFile, sha256_of
from dalle_lib.vqgan import VQGAN, VQGANConfig, convert_vqgan, load_vqgan, save_vqgan

TINY = VQGANConfig(
    resolution=16, codebook_size=7, channels=32, channel_mult=(1, 2), res_blocks=1, attention_at=(8,), latent_dim=4
)
LOCAL = VQGANConfig(
    resolution=32,
    codebook_size=64,
    channels=32,
    channel_mult=(1,),
    res_blocks=0,
    attention_at=(),
    latent_dim=192,
    local_encoder=True,
    decoder_shuffle=8,
)


@pytest.fixture(scope="module")
def taming() -> nn.ModuleDict:
    torch.manual_seed(0)
    sizes = {"ch": 128, "out_ch": 3, "ch_mult": (1, 1, 2, 4), "num_res_blocks": 2, "attn_resolutions": [32]}
    sizes |= {"in_channels": 3, "resolution": 256, "z_channels": 256, "double_z": False}
    modules = {"encoder": Encoder(**sizes), "decoder": Decoder(**sizes), "quantize": GumbelQuantize(256, 256, 8192)}
    modules |= {"quant_conv": nn.Conv2d(256, 256, 1), "post_quant_conv": nn.Conv2d(256, 256, 1)}
    return nn.ModuleDict(modules).eval()


@pytest.fixture
def tiny() -> VQGAN:
    torch.manual_seed(0)
    return VQGAN(TINY).eval()


@pytest.fixture
def nearest() -> VQGAN:
    """A local VQ-GAN whose code of a patch x is the nearest codebook entry c: 2 c.x - |c|^2 is largest there."""
    torch.manual_seed(0)
    vqgan = VQGAN(LOCAL).eval().requires_grad_(False)
    codebook = torch.rand(64, 192) * 2 - 1
    vqgan.quantize.embed.weight.copy_(codebook)
    vqgan.quantize.proj.weight.copy_(2 * codebook[:, :, None, None])
    vqgan.quantize.proj.bias.copy_(-codebook.square().sum(1))
    vqgan.quant_conv.weight.copy_(torch.eye(192)[:, :, None, None])
    vqgan.quant_conv.bias.zero_()
    return vqgan


class MakesAFolder:
    """What a hostile checkpoint may hold: unpickling it makes `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def pictures_of(count: int, side: int) -> torch.Tensor:
    return torch.randint(256, (count, side, side, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def test_published_weights_give_the_codes_and_pictures_of_tamings_modules(taming, tmp_path):
    loss = {"loss.discriminator.main.0.weight": torch.zeros(64, 3, 4, 4)}
    save_file({**taming.state_dict(), **loss}, tmp_path / "published.safetensors")
    vqgan, picture = load_vqgan(tmp_path / "published.safetensors"), pictures_of(1, 256)

    hidden = taming["quant_conv"](taming["encoder"](2 * (picture.permute(0, 3, 1, 2) / 255) - 1))
    expected_codes = taming["quantize"].proj(hidden).argmax(1).flatten(1)
    codes = vqgan.encode(picture)
    assert torch.equal(codes, expected_codes)
    assert len(codes.unique()) > 100

    latents = taming["quantize"].embed.weight[codes].view(1, 32, 32, 256).permute(0, 3, 1, 2)
    pixels = (taming["decoder"](taming["post_quant_conv"](latents)).clamp(-1, 1) + 1) / 2
    expected = (255 * pixels).permute(0, 2, 3, 1)
    assert (vqgan.decode(codes) - expected).abs().max() <= 1
    assert expected.std() > 10


def test_a_lightning_checkpoint_is_converted_without_the_classes_of_its_objects(taming, tmp_path):
    module = sys.modules["lightning_of_2021"] = types.ModuleType("lightning_of_2021")
    for name, base in ("ModelCheckpoint", object), ("AttributeDict", dict), ("ListConfig", list):
        setattr(module, name, type(name, (base,), {"__module__": module.__name__}))
    monitor = module.ModelCheckpoint()
    monitor.best = torch.ones(1)
    contents = {
        "callbacks": {module.ModelCheckpoint: {"best": monitor}, monitor: 1},
        "hyper_parameters": module.AttributeDict(rate=1e-4, steps=module.ListConfig([1, 2])),
        "state_dict": taming.state_dict(),
    }
    try:
        torch.save(contents, tmp_path / "last.ckpt")
    finally:
        del sys.modules[module.__name__]

    found = convert_vqgan(tmp_path / "last.ckpt", tmp_path / "vqgan.safetensors", sha256_of(tmp_path / "last.ckpt"))
    tensors, metadata = load_tensors(tmp_path / "vqgan.safetensors")
    assert found == sha256_of(tmp_path / "vqgan.safetensors")
    assert metadata["converted_from_sha256"] == sha256_of(tmp_path / "last.ckpt")
    assert tensors.keys() == taming.state_dict().keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in taming.state_dict().items())
    assert load_vqgan(tmp_path / "vqgan.safetensors").config == VQGANConfig()


@pytest.mark.parametrize("written_by", ["torch", "torch before 1.6", "pickle"])
def test_nothing_in_a_checkpoint_is_run(written_by, tmp_path):
    checkpoint, folder = tmp_path / "last.ckpt", tmp_path / "made by the checkpoint"
    contents = {"state_dict": {"encoder.conv_in.weight": MakesAFolder(folder)}}
    if written_by == "pickle":
        checkpoint.write_bytes(pickle.dumps(contents, protocol=2))
    else:
        torch.save(contents, checkpoint, _use_new_zipfile_serialization=written_by == "torch")
    reason = r"lacks encoder\.conv_in\.weight" if written_by == "torch" else r"torch 1\.6 or later"
    with pytest.raises(ValueError, match=reason):
        convert_vqgan(checkpoint, tmp_path / "vqgan.safetensors")
    assert list(tmp_path.iterdir()) == [checkpoint]
    pickle.loads(pickle.dumps(contents))
    assert folder.exists(), "the checkpoint was harmless, so this test shows nothing"


def test_a_small_checkpoint_that_claims_many_numbers_is_refused(taming, tmp_path):
    file, out = tmp_path / "last.ckpt", tmp_path / "vqgan.safetensors"
    shapes = {name: tensor.shape for name, tensor in taming.state_dict().items()}
    torch.save({name: torch.ones(1).expand(shape) for name, shape in shapes.items()}, file)
    with pytest.raises(BrokenFile, match=r"last\.ckpt does not hold all numbers of encoder\.conv_in\.weight, of shape"):
        convert_vqgan(file, out)
    torch.save({"loss.none": torch.ones(1).expand(10**12)}, file)
    with pytest.raises(BrokenFile, match="lacks encoder"):
        convert_vqgan(file, out)
    torch.save({"x": torch.zeros(10**6)}, file)
    with zipfile.ZipFile(file) as stored, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    out.replace(file)
    assert file.stat().st_size < 10_000
    with pytest.raises(BrokenFile, match=r"it has [\d,]+ bytes, and unpacks to 4,0"):
        convert_vqgan(file, out)


def test_a_checkpoint_of_another_hash_is_refused_unread(tmp_path):
    (tmp_path / "last.ckpt").write_bytes(b"other")
    with pytest.raises(ValueError, match=rf"expected SHA-256 {'0' * 64}, found {sha256_of(tmp_path / 'last.ckpt')}"):
        convert_vqgan(tmp_path / "last.ckpt", tmp_path / "vqgan.safetensors", sha256="0" * 64)


def test_saved_weights_come_back_with_their_configuration(tiny, tmp_path):
    save_vqgan(tmp_path / "vqgan.safetensors", tiny, torch.float16, note="hello")
    loaded = load_vqgan(tmp_path / "vqgan.safetensors")
    assert loaded.config == TINY
    assert load_tensors(tmp_path / "vqgan.safetensors")[1]["note"] == "hello"
    for name, tensor in tiny.state_dict().items():
        kept = tensor.half().float() if tensor.ndim > 1 else tensor
        assert torch.equal(loaded.state_dict()[name], kept), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantize.embed.weight": None}, r"it lacks quantize\.embed\.weight\. Get it anew"),
        ({"strange": torch.zeros(1)}, r"it has an unknown strange\. Get it anew"),
        (
            {"quantize.embed.weight": torch.zeros(7, 5)},
            r"embed\.weight of shape \[7, 5\] instead of \[7, 4\]",
        ),
        ({f"strange.{i}": torch.zeros(1) for i in range(8)}, r"strange\.4 and 3 more faults\. Get it anew"),
    ],
    ids=["missing", "unknown", "misshaped", "many"],
)
def test_wrong_tensors_are_named(tiny, tmp_path, changes, message):
    file = tmp_path / "vqgan.safetensors"
    save_vqgan(file, tiny)
    metadata = load_tensors(file)[1]
    tensors = {name: tensor for name, tensor in {**load_file(file), **changes}.items() if tensor is not None}
    save_file(tensors, file, metadata)
    with pytest.raises(ValueError, match=message):
        load_vqgan(file)


def test_chunks_change_nothing(tiny, nearest):
    pictures = pictures_of(5, 32)
    assert torch.equal(nearest.encode(pictures, chunk=2), nearest.encode(pictures))
    codes = torch.randint(7, (5, 64), generator=torch.Generator().manual_seed(0))
    whole, parts = tiny.decode(codes).int(), tiny.decode(codes, chunk=2).int()
    assert (whole - parts).abs().max() <= 1
    assert (whole[0] - whole[4]).abs().max() > 1, "all pictures are alike, so their order goes unchecked"
    assert tiny.decode(codes[:0]).shape == (0, 16, 16, 3)


def test_no_more_than_a_chunk_is_in_the_networks_at_a_time(tiny):
    sizes = []
    for network in tiny.encoder, tiny.decoder:
        network.register_forward_hook(lambda _, given, __: sizes.append(len(given[0])))
    tiny.decode(torch.zeros(128, 64, dtype=torch.long), chunk=24)
    tiny.encode(pictures_of(25, 16), chunk=24)
    assert sizes == [24] * 5 + [8] + [24, 1]


def test_wrong_codes_and_pictures_are_refused(tiny):
    codes = torch.zeros(1, 64, dtype=torch.long)
    with pytest.raises(ValueError, match="expected 64 codes for each picture, but got 63"):
        tiny.decode(codes[:, :63])
    for wrong in 7, -1:
        with pytest.raises(ValueError, match="codes must be from 0 to 6"):
            tiny.decode(codes.index_fill(1, torch.tensor([5]), wrong))
    with pytest.raises(ValueError, match=r"expected pictures of 16x16 pixels, but got \(16, 17\)"):
        tiny.encode(torch.zeros(1, 16, 17, 3, dtype=torch.uint8))


def test_a_local_code_is_the_nearest_patch_of_the_codebook(nearest):
    pictures = pictures_of(2, 32)
    patches = F.unfold(pictures.permute(0, 3, 1, 2).double() / 127.5 - 1, 8, stride=8).transpose(1, 2)
    distances = torch.cdist(patches, nearest.quantize.embed.weight.double())
    codes = nearest.encode(pictures)
    assert torch.equal(codes, distances.argmin(-1))
    assert len(codes.unique()) > 10


def test_a_local_code_depends_on_its_own_patch_alone(nearest):
    picture = pictures_of(1, 32)
    changed = picture.clone()
    changed[:, 8:16, 16:24] = 255 - changed[:, 8:16, 16:24]
    different = nearest.encode(picture) != nearest.encode(changed)
    assert different.nonzero().tolist() == [[0, 1 * LOCAL.grid + 2]]


def test_a_local_encoder_needs_as_many_channels_as_a_patch_has_numbers():
    with pytest.raises(ValueError, match=r"latent_dim must be 192, the pixels of a patch, .* but is 191"):
        VQGANConfig(channel_mult=(1, 1, 2, 4), local_encoder=True, latent_dim=191)
