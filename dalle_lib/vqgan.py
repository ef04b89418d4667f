"""Pictures as codes and codes as pictures: a VQ-GAN made of taming-transformers' networks."""

import contextlib
import io
import json
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from dalle_lib.checkpoint import Kind, configured, load_tensors, read_header, require_fit, require_stored, save_tensors
from dalle_lib.files import ANEW, BrokenFile, reading, sha256_of
from dalle_lib.one_line import in_one_line
from dalle_lib.torch_zip import require_plain

_CONFIG = "vqgan"
"""Key of the configuration in a file's metadata."""
_SOURCE = "converted_from_sha256"
"""Key of the hash of the checkpoint that a file was converted from."""
_IGNORED = "loss."
"""Prefix of the published checkpoint's training-only tensors."""
_RANGES = {
    "resolution": (1, 4096),
    "codebook_size": (1, 2**16),
    "channels": (1, 4096),
    "res_blocks": (0, 64),
    "latent_dim": (1, 4096),
    "decoder_shuffle": (1, 64),
}
"""Least and greatest sizes of a VQ-GAN; codes are stored in 16 bits."""
_MAX_LEVELS = 8
_MAX_VALUES = 2**27
"""Values of one picture in a layer at full resolution: half a gigabyte, 16 times those of the published VQ-GAN."""


@dataclass(frozen=True, kw_only=True)
class VQGANConfig:
    """Sizes of a VQ-GAN; the defaults are those of the published GumbelVQ f8 with 8192 codes.

    Raises ValueError for sizes that no VQ-GAN has, and for a local encoder whose `latent_dim` is not the number of
    pixels and channels of a patch.
    """

    resolution: int = 256
    """Pixels on a side of a picture."""
    codebook_size: int = 8192
    """Number of different codes."""
    channels: int = 128
    """Channels of the networks; each level has its entry of `channel_mult` times as many."""
    channel_mult: tuple[int, ...] = (1, 1, 2, 4)
    """One factor for each level; each level after the first halves the resolution."""
    res_blocks: int = 2
    """Residual blocks of each level."""
    attention_at: tuple[int, ...] = (32,)
    """Resolutions at which the networks have self-attention."""
    latent_dim: int = 256
    """Channels between encoder, codebook and decoder."""
    local_encoder: bool = False
    """Encode each patch by its own pixels alone; `latent_dim` must then be their number, 3 x factor x factor.

    The codes of a picture then stay the same where its pixels do. With an encoder that sees the whole picture, the
    embedded model never drew a combination of emoji and background that it had not seen (dev/DECISIONS.md).
    """

    decoder_shuffle: int = 1
    """Side, in pixels, of what the decoder makes at each place, as channels (pixel shuffle, arXiv:1609.05158)."""

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            is_size = type(size := getattr(self, name)) is int and least <= size <= most
            self._require(name, is_size, f"be a whole number from {least} to {most}")
        for name, least, most in ("channel_mult", 1, 64), ("attention_at", 0, 4096):
            sizes = getattr(self, name)
            is_list = isinstance(sizes, tuple) and least <= len(sizes) <= _MAX_LEVELS
            are_sizes = is_list and all(type(size) is int and 1 <= size <= most for size in sizes)
            self._require(name, are_sizes, f"hold {least} to {_MAX_LEVELS} whole numbers from 1 to {most}")
        side, patch, most = self.resolution, 3 * self.factor**2, _MAX_VALUES // self.resolution**2
        self._require("resolution", side % self.factor == 0, f"be a multiple of {self.factor}, the pixels of a code")
        self._require("channels", self.channels <= most, f"be at most {most} at a resolution of {side}")
        expected = f"be {patch}, the pixels of a patch, when the encoder is local"
        self._require("latent_dim", not self.local_encoder or self.latent_dim == patch, expected)

    def _require(self, name: str, is_right: bool, what: str) -> None:
        if not is_right:
            raise ValueError(f"VQGANConfig.{name} must {what}, but is {getattr(self, name)!r:.60}.")

    @property
    def factor(self) -> int:
        """Pixels on the side of the square that one code stands for."""
        return self.decoder_shuffle * 2 ** (len(self.channel_mult) - 1)

    @property
    def grid(self) -> int:
        """Codes on a side of a picture."""
        return self.resolution // self.factor

    @classmethod
    def emoji(cls) -> "VQGANConfig":
        """The VQ-GAN of `emoji-mini`: 64x64 pictures of 8x8 codes, small enough to train on a CPU in minutes."""
        return cls(
            resolution=64,
            codebook_size=2048,
            channels=192,
            channel_mult=(1,),
            res_blocks=0,
            attention_at=(),
            latent_dim=192,
            local_encoder=True,
            decoder_shuffle=8,
        )


class VQGAN(nn.Module):
    """Pictures as codes, and codes as pictures: a VQ-GAN with the tensor names of the published GumbelVQ.

    Sources: arXiv:2012.09841 (VQGAN), arXiv:1611.01144 (Gumbel-softmax, with which its codebook is trained).
    """

    def __init__(self, config: VQGANConfig) -> None:
        from taming.modules.diffusionmodules.model import Decoder, Encoder
        from taming.modules.vqvae.quantize import GumbelQuantize

        super().__init__()
        self.config = config
        latent = config.latent_dim
        sizes = {
            "ch": config.channels,
            "out_ch": 3 * config.decoder_shuffle**2,
            "ch_mult": config.channel_mult,
            "num_res_blocks": config.res_blocks,
            "attn_resolutions": config.attention_at,
            "in_channels": 3,
            "resolution": config.resolution // config.decoder_shuffle,
            "z_channels": latent,
        }
        with contextlib.redirect_stdout(io.StringIO()):  # taming's constructors print
            patches = nn.PixelUnshuffle(config.factor)
            self.encoder = patches if config.local_encoder else Encoder(**sizes, double_z=False)
            self.decoder = Decoder(**sizes)
        self.quant_conv = nn.Conv2d(latent, latent, 1)
        self.post_quant_conv = nn.Conv2d(latent, latent, 1)
        self.quantize = GumbelQuantize(latent, latent, config.codebook_size)

    @torch.no_grad()
    def encode(self, pictures: UInt8[Tensor, "batch height width 3"], chunk: int = 16) -> Int[Tensor, "batch codes"]:
        """Return the codes of each picture, row by row, on the CPU; `chunk` pictures are in the networks at a time.

        Raises ValueError for pictures of another size than the configuration's.
        """
        side = self.config.resolution
        if tuple(pictures.shape[1:3]) != (side, side):
            raise ValueError(f"expected pictures of {side}x{side} pixels, but got {tuple(pictures.shape[1:3])}.")
        codes = torch.empty(len(pictures), self.config.grid**2, dtype=torch.long)
        for start in range(0, len(pictures), chunk):
            codes[start : start + chunk] = self._encode(pictures[start : start + chunk].to(self.device)).cpu()
        return codes

    @torch.no_grad()
    def decode(self, codes: Int[Tensor, "batch codes"], chunk: int = 16) -> UInt8[Tensor, "batch height width 3"]:
        """Return the picture of each row of codes, on the CPU; at most `chunk` are in the networks at a time.

        Raises ValueError if a picture has another number of codes than the configuration's, or a code is out of range.
        """
        side, size = self.config.resolution, self.config.codebook_size
        if codes.shape[1] != self.config.grid**2:
            raise ValueError(f"expected {self.config.grid**2} codes for each picture, but got {codes.shape[1]}.")
        if codes.numel() and not (int(codes.min()) >= 0 and int(codes.max()) < size):
            raise ValueError(f"codes must be from 0 to {size - 1}, but are {int(codes.min())} to {int(codes.max())}.")
        chunk = max(1, min(chunk, _MAX_VALUES // (self.config.channels * side**2)))
        pictures = torch.empty(len(codes), side, side, 3, dtype=torch.uint8)
        for start in range(0, len(codes), chunk):
            decoded = self.to_pixels(codes[start : start + chunk].to(self.device))
            scaled = (decoded.clamp(-1, 1) + 1) * 127.5
            pictures[start : start + chunk] = scaled.round().to(torch.uint8).permute(0, 2, 3, 1).cpu()
        return pictures

    def to_pixels(self, codes: Int[Tensor, "batch codes"]) -> Float[Tensor, "batch 3 height width"]:
        """Return what the decoder makes of `codes`, with gradients: black is about -1 and white about 1."""
        latents = self.quantize.embed(codes).transpose(1, 2).unflatten(2, (self.config.grid, -1))
        return F.pixel_shuffle(self.decoder(self.post_quant_conv(latents)), self.config.decoder_shuffle)

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        return self.quantize.embed.weight.device

    def _encode(self, pictures: Tensor) -> Tensor:
        pixels = pictures.permute(0, 3, 1, 2).float() / 127.5 - 1
        # The largest logit is the code: GumbelQuantize.forward would add noise to it, in evaluation too.
        return self.quantize.proj(self.quant_conv(self.encoder(pixels))).argmax(1).flatten(1)


def save_vqgan(file: str | Path, vqgan: VQGAN, dtype: torch.dtype = torch.float32, **metadata: str) -> None:
    """Write a VQ-GAN with its configuration and `metadata`: matrices in `dtype`, vectors in float32.

    Biases stay in float32 because small errors in them change codes.
    """
    tensors = {name: tensor.to(dtype) if tensor.ndim > 1 else tensor for name, tensor in vqgan.state_dict().items()}
    save_tensors(file, tensors, {_CONFIG: json.dumps(asdict(vqgan.config)), **metadata})


def load_vqgan(file: str | Path) -> VQGAN:
    """Return the VQ-GAN of a safetensors file, in float32 and without gradients of its weights.

    A file without a configuration is taken for the published model's. Raises FileNotFoundError if there is no file,
    and BrokenFile if it is no safetensors, or tensors are missing, unknown or of another shape. No memory is taken for
    a VQ-GAN that the file does not hold.
    """
    found, metadata = read_header(file)
    vqgan = _outline(configured(file, metadata.get(_CONFIG, "{}"), _config), found, file)
    return _filled(vqgan, load_tensors(file)[0])


def convert_vqgan(checkpoint: str | Path, out: str | Path, sha256: str | None = None) -> str:
    """Write the VQ-GAN of a Lightning checkpoint as safetensors, and return the new file's SHA-256.

    Only numbers are taken from the file, and nothing in it is run, though Lightning keeps Python objects beside them;
    whether they can be trusted depends on their publisher. Raises ValueError if `sha256` is given and is not
    the checkpoint's hash, if the checkpoint holds anything but the published model, or is to be written itself.
    """
    checkpoint, out = Path(checkpoint), Path(out).resolve()
    with reading(checkpoint, "a checkpoint of torch"):
        digest = sha256_of(checkpoint)
    if out.exists() and out.samefile(checkpoint):
        raise ValueError(f"expected another file to write than {checkpoint}, which is read: name another OUT.")
    if sha256 is not None and digest != sha256:
        raise ValueError(f"{checkpoint} is not the expected file: expected SHA-256 {sha256}, found {digest}.")
    with reading(checkpoint, "a checkpoint of torch"):
        require_plain(checkpoint)
        try:
            contents = torch.load(checkpoint, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            contents = torch.load(checkpoint, map_location="cpu", weights_only=False, pickle_module=_TensorPickle)
    contents = contents.get("state_dict", contents) if isinstance(contents, dict) else {}
    tensors = contents if isinstance(contents, dict) else {}
    tensors = {str(name): tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    found = {name: Kind("F32", tuple(tensor.shape)) for name, tensor in tensors.items()}
    outline = _outline(VQGANConfig(), found, checkpoint)
    require_stored(checkpoint, tensors)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_vqgan(out, _filled(outline, tensors), **{_SOURCE: digest})
    return sha256_of(out)


def _config(**sizes) -> VQGANConfig:
    """Return the configuration of these sizes, in which JSON has lists for tuples."""
    return VQGANConfig(**{name: tuple(size) if isinstance(size, list) else size for name, size in sizes.items()})


def _outline(config: VQGANConfig, found: Mapping[str, Kind], file: str | Path) -> VQGAN:
    """Return a VQ-GAN on the device "meta". Raises BrokenFile, which names `file`, unless it holds what that needs."""
    try:
        with torch.device("meta"):
            vqgan = VQGAN(config)
    except ValueError as error:  # a number of channels that the networks' norms cannot divide
        raise BrokenFile(f"{file} is no VQ-GAN: {config} cannot be ({in_one_line(error)}). {ANEW}") from error
    kept = {name: kind for name, kind in found.items() if not name.startswith(_IGNORED)}
    require_fit(file, kept, vqgan, f"a VQ-GAN of {config}")
    return vqgan


def _filled(vqgan: VQGAN, tensors: Mapping[str, Tensor]) -> VQGAN:
    """Return an outline of a VQ-GAN with its weights, in float32."""
    kept = {name: tensor.float() for name, tensor in tensors.items() if not name.startswith(_IGNORED)}
    vqgan.load_state_dict(kept, assign=True)
    return vqgan.eval().requires_grad_(False)


class _Inert:
    """Takes the place of any object but a tensor: it accepts whatever pickle gives it, and keeps nothing."""

    __slots__ = ()

    def __new__(cls, *state, **named):
        return super().__new__(cls)

    def _ignore(self, *state) -> "_Inert":
        return _Inert()

    __call__ = __setitem__ = __setstate__ = append = extend = add = _ignore


class _TensorUnpickler(pickle.Unpickler):
    """Finds only the functions that tensors are rebuilt by; torch.load finds the types of their storage itself."""

    def find_class(self, module: str, name: str):
        allowed = (torch._utils._rebuild_tensor_v2, torch._utils._rebuild_parameter, OrderedDict)
        return {(known.__module__, known.__name__): known for known in allowed}.get((module, name), _Inert)


class _TensorPickle:
    """The part of the `pickle` module that `torch.load` uses for a zip archive."""

    Unpickler = _TensorUnpickler
