"""How large a run's model is, and how it is trained: by a preset, or by its data."""

from dataclasses import asdict, replace
from typing import Any, Literal

from dalle_lib.memory.dalle import DALLEDescription
from dalle_lib.model import ModelConfig
from dalle_lib.run.parts import AveragingCard, OptimizerCard, RecipeCard
from dalle_lib.streaming import CodesFormat

Preset = Literal["small", "paper"]
SMALL_GRID = 16
"""Rows of codes up to which a picture is small."""
SMALL_BATCH, PASSES = 192, 60
"""Samples of an epoch of a small model, and how often it sees each row of its data."""
SMALL_AVERAGING = AveragingCard(
    target_batch_size=SMALL_BATCH, matchmaking_s=3, longest_matchmaking_s=10, timeout_s=20, parts="measured"
)
"""How peers of a small model average."""
PAPER_EPOCHS = 31_250
STATE_EVERY = 20
"""Epochs between averages of the parameters at the paper's learning rate, where eight bits themselves keep peers
further apart than the updates of so many epochs (`benchmarks/parameter_rounds.py`)."""
MIN_TEXT, MAX_TEXT = 16, 256
"""Text tokens that are read of a caption: no fewer than in `emoji-mini`, as prompts are longer than names, and no more
than in the paper."""
T5 = "google-t5/t5-small"
"""The paper's tokenizer on the Hub."""
ANYWAY = "Without --preset, data of more than 16x16 codes get the paper's model and schedule in their own sizes."


def sizes_for(
    codes: CodesFormat, *, rows: int, text_vocab: int, needed_text: int, preset: Preset | None = None
) -> dict[str, Any]:
    """Return the parts of a card that say how large a model of such codes is, and how it is trained on `rows`.

    `text_vocab` is the tokenizer's, and `needed_text` the text tokens that nearly all captions have room in. A small
    model sees each row PASSES times, if that takes no more epochs than the paper's run, and no fewer than 100. Raises
    ValueError if the preset is "paper", and the codes or the vocabulary are not the paper's.
    """
    own = {
        "text_vocab": text_vocab,
        "text_length": min(MAX_TEXT, max(MIN_TEXT, -(-needed_text // 4) * 4)),
        "image_vocab": codes.codebook_size,
        "grid": codes.grid,
    }
    if (preset or ("small" if codes.grid <= SMALL_GRID else "paper")) == "small":
        epochs = min(PAPER_EPOCHS, max(100, -(-PASSES * rows // SMALL_BATCH)))
        return {
            "model": replace(ModelConfig.emoji(), **own),
            "optimizer": OptimizerCard(lr=2e-2, warmup_epochs=max(5, epochs // 20), total_epochs=epochs),
            "averaging": SMALL_AVERAGING,
            "recipe": RecipeCard(caption_dropout=0.1),
        }
    if preset == "paper":
        require_paper_codes(codes)
        if text_vocab != (wanted := ModelConfig.paper().text_vocab):
            raise ValueError(
                f"the paper's tokenizer has {wanted:,} ids, but this one has {text_vocab:,}: take that of {T5}. "
                f"{ANYWAY}"
            )
        return paper_sizes()
    return paper_sizes() | {"model": replace(ModelConfig.paper(), **own)}


def paper_sizes() -> dict[str, Any]:
    """Return these parts as the paper's run has them (arXiv:2207.03481)."""
    return {
        "model": ModelConfig.paper(),
        "optimizer": OptimizerCard(lr=2.5e-3, warmup_epochs=PAPER_EPOCHS // 10, total_epochs=PAPER_EPOCHS),
        "averaging": AveragingCard(
            target_batch_size=4096,
            matchmaking_s=15,
            longest_matchmaking_s=30,
            timeout_s=300,
            state_every=STATE_EVERY,
            parts="measured",
        ),
        "recipe": RecipeCard(),
    }


def require_paper_codes(codes: CodesFormat) -> None:
    """Raise ValueError unless the codes are like those of the paper's VQ-GAN."""
    paper = ModelConfig.paper()
    if (codes.grid, codes.codebook_size) != (paper.grid, paper.image_vocab):
        raise ValueError(
            f"the paper's pictures are {paper.grid}x{paper.grid} codes among {paper.image_vocab:,}, but the data have "
            f"{codes.grid}x{codes.grid} among {codes.codebook_size:,}: prepare the pictures with its VQ-GAN. {ANYWAY}"
        )


def size_of(card: Any) -> str:
    """Return what is trained in a run, and how large it is, in words."""
    parameters = DALLEDescription(asdict(card.model)).parameter_count
    return f"a text-to-image model of {parameters / 1e6:,.1f} million parameters"
