"""What training in a run starts from, inside a swarm or outside one: the model and a stream of batches."""

from contextlib import closing

import torch

from dalle_lib.checkpoint import load_model
from dalle_lib.model import DALLE
from dalle_lib.run.card import RunCard
from dalle_lib.streaming import CaptionTokenizer, CodeStream, stream_codes
from dalle_lib.streaming.batches import TrainingBatches
from dalle_lib.vqgan import load_vqgan


def initial_model(card: RunCard) -> DALLE:
    """Return the model that the run starts from: its checkpoint, or random weights that are equal on all peers.

    Raises ValueError if the checkpoint is not the one that the card names, or holds another model.
    """
    if card.checkpoint is not None:
        return load_model(card.path(card.checkpoint), card.model)
    with torch.random.fork_rng():
        torch.manual_seed(card.seed)
        return DALLE(card.model)


def codes_of_run(card: RunCard, seed: int) -> CodeStream:
    """Return the endless stream of the run's training data in the order of `seed`.

    Raises ValueError if the data cannot be read, or hold other codes than the card says.
    """
    return stream_codes(
        card.data_source(card.data.train),
        seed=seed,
        revision=card.data.revision,
        expected=card.data.format,
        manifest=card.data.manifest,
        filters=card.data.filters,
        token=card.token,
    )


def batches_of(card: RunCard, batch_size: int, seed: int) -> TrainingBatches:
    """Return an endless stream of the run's training batches; peers with different seeds see different orders.

    `seed` also decides which captions are left out and which codes are corrupted, as the card's recipe asks. Raises
    ValueError as `codes_of_run` does.
    """
    return TrainingBatches(
        codes_of_run(card, seed),
        CaptionTokenizer(card.path(card.tokenizer), card.model.text_length),
        batch_size=batch_size,
        codebook_size=card.model.image_vocab,
        code_corruption=card.recipe.code_corruption,
        caption_dropout=card.recipe.caption_dropout,
    )


def require_fit(card: RunCard) -> None:
    """Raise ValueError unless all that the card names is there, and fits its model."""
    card.require_beside()
    require_vqgan(card)
    require_tokenizer(card)
    with closing(codes_of_run(card, card.seed)) as stream:
        next(stream)
    require_checkpoint(card)


def require_vqgan(card: RunCard) -> None:
    """Raise ValueError unless the VQ-GAN is there, draws what the model does, and has made the codes of the data."""
    sizes, decoder = card.model, load_vqgan(card.path(card.vqgan)).config
    if (decoder.grid, decoder.codebook_size) != (sizes.grid, sizes.image_vocab):
        raise ValueError(
            f"the model draws grids of {sizes.grid} among {sizes.image_vocab} codes, but the VQ-GAN has grids of "
            f"{decoder.grid} among {decoder.codebook_size}."
        )
    if card.data.format.vqgan_sha256 != card.vqgan.sha256:
        raise ValueError("the codes of the data were made by another VQ-GAN than the card's: take that one.")


def require_tokenizer(card: RunCard) -> None:
    """Raise ValueError unless the tokenizer is there, and has no more ids than the model."""
    ids = CaptionTokenizer(card.path(card.tokenizer), card.model.text_length).vocab_size
    if ids > card.model.text_vocab:
        raise ValueError(f"the tokenizer has {ids} ids, but the model text_vocab={card.model.text_vocab}: raise it.")


def require_checkpoint(card: RunCard) -> None:
    """Raise ValueError if the run starts from weights, and they are not there or another model's."""
    if card.checkpoint is not None:
        load_model(card.path(card.checkpoint), card.model)
