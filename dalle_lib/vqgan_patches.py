"""A VQ-GAN that starts from patches: its sizes, its codebook, and a decoder that puts the codebook's patches down."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from dalle_lib.vqgan import VQGAN, VQGANConfig

MAX_PATCHES = 200_000
"""Different patches from which the codebook is made."""
MAX_COUNTED = 4_000_000
"""Patches among which different ones are counted; a sample of them where there are more."""
GROUPS = 32
"""Groups of channels of taming's norms."""
SPARE = 2
"""Channels of each group that hold a constant, by which the decoder can pass a patch through its norms."""
CONSTANT = 8.0
"""The constant, large beside pixels from -1 to 1: at 8 the norms change a patch by about 1%."""
LINEAR = 6.0
"""Where the decoder's last activation, x * sigmoid(x), is almost linear."""


def local_config(resolution: int, *, factor: int = 8, codebook_size: int = 2048) -> VQGANConfig:
    """Return the sizes of a VQ-GAN that `train_vqgan` can make: each code stands for `factor` x `factor` pixels.

    Photographs that it had not seen kept 26.8 dB at 64x64 pixels and a factor of 4 (580 training crops of 29, 600
    steps, a minute on one core), 25.6 dB at 128x128 and 8 (435 crops, 200 steps, 1.5 minutes), and 24.9 dB at 256x256,
    8 and 8192 codes (320 crops of 20, 200 steps of 4, 6 minutes). A codebook
    of 512, 2048 or 8192 codes kept, as bare patches, 25.2, 26.3 or 27.1 dB at 64x64 and 4: raise `codebook_size` for
    more detail, which a model then takes longer to learn. Raises ValueError for sizes that no VQ-GAN has.
    """
    latent = 3 * factor**2
    group_size = -(-latent // GROUPS) + SPARE
    return VQGANConfig(
        resolution=resolution,
        codebook_size=codebook_size,
        channels=group_size * GROUPS,
        channel_mult=(1,),
        res_blocks=0,
        attention_at=(),
        latent_dim=latent,
        local_encoder=True,
        decoder_shuffle=factor,
    )


def require_sizes(config: VQGANConfig) -> None:
    """Raise ValueError unless the decoder of a VQ-GAN of these sizes can start from patches."""
    channels, latent = config.channels * config.channel_mult[0], config.latent_dim
    is_local = config.local_encoder and len(config.channel_mult) == 1
    if not is_local or channels < latent or channels % GROUPS:
        raise ValueError(
            f"expected a local encoder and one level of a multiple of {GROUPS} channels, at least latent_dim, but got "
            f"local_encoder={config.local_encoder}, latent_dim={latent}, channels={config.channels}, "
            f"channel_mult={config.channel_mult}: local_config() returns such sizes."
        )


def make_codebook(
    pixels: UInt8[Tensor, "pictures height width 3"], config: VQGANConfig, seed: int
) -> Float[Tensor, "codebook dim"]:
    """Return the k-means centres of the patches, with values from -1 to 1.

    A patch counts by the square root of how often it occurs, so that plain backgrounds do not take the whole codebook.
    Raises ValueError if the pictures have fewer different patches than the codebook has codes.
    """
    from sklearn.cluster import KMeans

    patches = F.pixel_unshuffle(pixels.permute(0, 3, 1, 2), config.factor).flatten(2).transpose(1, 2).flatten(0, 1)
    if len(patches) > MAX_COUNTED:
        patches = patches[torch.randperm(len(patches))[:MAX_COUNTED]]
    distinct, counts = torch.unique(patches, dim=0, return_counts=True)
    if len(distinct) < config.codebook_size:
        raise ValueError(
            f"expected at least as many different patches of {config.factor}x{config.factor} pixels as the codebook "
            f"has codes, {config.codebook_size:,}, but {len(pixels):,} pictures have {len(distinct):,}: give more "
            "pictures, or lower codebook_size."
        )
    sampled = torch.randperm(len(distinct))[:MAX_PATCHES]
    kmeans = KMeans(config.codebook_size, random_state=seed, init="random", n_init=1, max_iter=20)
    kmeans.fit(distinct[sampled].float().numpy() / 255, sample_weight=counts[sampled].sqrt().numpy())
    return torch.from_numpy(kmeans.cluster_centers_).half().float() * 2 - 1


def set_codebook(vqgan: VQGAN, centres: Float[Tensor, "codebook dim"]) -> None:
    """Set the weights so that a patch's code is that of its nearest centre, and the decoder starts from the centre.

    |x - c|^2 = |x|^2 - (2 c.x - |c|^2), so the centre c that is nearest to x has the largest 2 c.x - |c|^2.
    """
    centres = centres.half().float()  # as a file in float16 will hold them
    identity = torch.eye(centres.shape[1])[:, :, None, None]
    with torch.no_grad():
        vqgan.quantize.proj.weight.copy_(2 * centres[:, :, None, None])
        vqgan.quantize.proj.bias.copy_(-centres.square().sum(1))
        vqgan.quantize.embed.weight.copy_(centres)
        for conv in vqgan.quant_conv, vqgan.post_quant_conv:
            conv.weight.copy_(identity)
            conv.bias.zero_()


def start_as_patches(vqgan: VQGAN) -> None:
    """Make the decoder put down the codebook's patches, with residual layers that add nothing.

    Its last norm takes the mean of each group of channels away and divides by their deviation. Where each group has
    two spare channels, these hold a constant and its opposite: it makes up nearly all of the deviation, and their sum
    tells the mean that was taken. Without them, patches come through without brightness, and the decoder has to learn
    it: 128x128 photographs began at 13 dB, not 25, and took 500 steps to where 200 lead from here.
    """
    decoder, latent = vqgan.decoder, vqgan.config.latent_dim
    for name, module in decoder.named_modules():
        if name.endswith(("conv2", "proj_out")):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
    for conv in decoder.conv_in, decoder.conv_out:
        nn.init.dirac_(conv.weight)
        nn.init.zeros_(conv.bias)
    size = decoder.conv_out.in_channels // GROUPS
    if (size - SPARE) * GROUPS >= latent:
        _pass_through_norm(decoder, latent, size)


@torch.no_grad()
def _pass_through_norm(decoder: nn.Module, latent: int, size: int) -> None:
    conv_in, norm, conv_out = decoder.conv_in, decoder.norm_out, decoder.conv_out
    place = torch.arange(size * GROUPS) % size
    plus, minus = place == size - 2, place == size - 1
    values = torch.arange(latent)
    kept = torch.nonzero(~(plus | minus)).flatten()[:latent]  # the channel of each value of a patch
    group = kept // size * size
    nn.init.zeros_(conv_in.weight)
    conv_in.weight[kept, values, 1, 1] = 1
    conv_in.bias.copy_(CONSTANT * (plus.float() - minus.float()))
    deviation = CONSTANT * (2 / size) ** 0.5
    # The constants become 2 and -2, which the activation still passes on, and the mean shrinks with them.
    norm.weight.copy_(torch.where(plus | minus, deviation * 2 / CONSTANT, deviation))
    norm.bias.fill_(LINEAR)
    nn.init.zeros_(conv_out.weight)
    conv_out.weight[values, kept, 1, 1] = 1
    for spare in (size - 2, size - 1):
        conv_out.weight[values, group + spare, 1, 1] = -CONSTANT / 4
    grey = decoder(torch.zeros(1, conv_in.in_channels, 3, 3))[0, :, 1, 1]
    conv_out.bias.copy_(-grey)
