"""What training in a run starts from, inside a swarm or outside one: the model and a stream of batches."""

import torch

from dalle_lib.checkpoint import load_model
from dalle_lib.model import DALLE
from dalle_lib.run.card import RunCard
from dalle_lib.streaming import CaptionTokenizer, stream_codes
from dalle_lib.streaming.batches import TrainingBatches


def initial_model(card: RunCard) -> DALLE:
    """Return the model that the run starts from: its checkpoint, or random weights that are equal on all peers.

    Raises ValueError if the checkpoint is not the one that the card names, or holds another model.
    """
    if card.checkpoint is not None:
        return load_model(card.path(card.checkpoint), card.model)
    with torch.random.fork_rng():
        torch.manual_seed(card.seed)
        return DALLE(card.model)


def batches_of(card: RunCard, batch_size: int, seed: int) -> TrainingBatches:
    """Return an endless stream of the run's training batches; peers with different seeds see different orders.

    `seed` also decides which captions are left out and which codes are corrupted, as the card's recipe asks. Raises
    ValueError if the data cannot be read, or hold other codes than the card says.
    """
    codes = stream_codes(
        card.data_source(card.data.train),
        seed=seed,
        revision=card.data.revision,
        expected=card.data.format,
        manifest=card.data.manifest,
        filters=card.data.filters,
        token=card.token,
    )
    return TrainingBatches(
        codes,
        CaptionTokenizer(card.path(card.tokenizer), card.model.text_length),
        batch_size=batch_size,
        codebook_size=card.model.image_vocab,
        code_corruption=card.recipe.code_corruption,
        caption_dropout=card.recipe.caption_dropout,
    )
