"""The embedded model's three networks as ONNX graphs, for drawing in a browser.

`step` is the transformer at one position of each sequence. Sequences = prompts x samples; in all shapes below, `sample`
counts the pictures of a prompt. What earlier positions left behind is given and what this one leaves is returned, so
that the caller keeps it (`site/_static/draw-memory.js`), as `dalle_lib.model.cache` does in Python:

==========  ============================================  =====================================================
input       shape                                         what
==========  ============================================  =====================================================
ids         [prompt, sample]                              rows of the embedding table
turns       [2, dim_head]                                 cosine and sine of the position's angles, a row of `turns_of`
shifted     [2 x depth, prompt, sample, dim / 2]          what token shift puts in place of each layer's first half
text        [depth, 2, prompt, head, text, dim_head]      keys and values of the text part
mask_KIND   [text + slots + 1]                            0, or -inf where the position does not see a text position,
                                                          a slot; the last entry is the position itself
codes_N     [2, prompt, head, sample, slots, dim_head]    keys and values of codes that block N may see
==========  ============================================  =====================================================

It returns `logits` [prompt, sample, image_vocab] of the next code, `halves` like `shifted`, and `remembered`
[depth, 2, prompt, head, sample, dim_head]. The text is read position by position, with one sample a prompt.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F

from dalle_lib.model import DALLE
from dalle_lib.model.cache import ROWS
from dalle_lib.rerank import CLIPRanker
from dalle_lib.vqgan import VQGAN

OPSET = 20
"""The first with Gelu."""


class Step(nn.Module):
    """The transformer at one position of each sequence: see above. It has the layers of `model`, and its own loop."""

    def __init__(self, model: DALLE) -> None:
        super().__init__()
        self.model = model
        self.kinds = sorted(set(model.config.kinds))
        # Of a pair (a, b) of entries: (-b, a). A product is quicker here than taking every second entry.
        pair = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
        self.register_buffer("partner", torch.block_diag(*[pair] * (model.config.dim_head // 2)))

    def forward(
        self, ids: Tensor, turns: Tensor, shifted: Tensor, text: Tensor, masks: list[Tensor], codes: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        halves, remembered = [], []

        def shift(x: Tensor) -> Tensor:
            first, own = x.chunk(2, dim=-1)
            halves.append(first)
            return torch.cat([shifted[len(halves) - 1], own], dim=-1)

        def attend(x: Tensor, attention: nn.Module, block: int) -> Tensor:
            mask = masks[self.kinds.index(config.kinds[block])]
            heads = attention.qkv(x).unflatten(-1, (3 * config.heads, -1))
            heads = (heads * turns[0] + heads @ self.partner * turns[1]).transpose(1, 2)
            q, k, v = heads.chunk(3, dim=1)  # [prompt, head, sample, dim_head]
            remembered.append(torch.stack([k, v]))
            return attention.out(read(q, k, v, text[block], codes[block], mask).transpose(1, 2).flatten(2))

        config, transformer = self.model.config, self.model.transformer
        x1 = x2 = F.embedding(ids, self.model.head.weight)
        for number, (block, weights) in enumerate(zip(transformer.blocks, config.weight_sets, strict=True)):
            attention, feed_forward = transformer.attentions[weights], transformer.feed_forwards[weights]
            x1 = x1 + block.attention_scale * attend(shift(block.attention_norm(x2)), attention, number)
            x2 = x2 + block.feed_forward_scale * feed_forward(shift(block.feed_forward_norm(x1)))
        logits = F.linear(self.model.norm((x1 + x2) / 2), *self.model.heads()[1])
        return logits, torch.stack(halves), torch.stack(remembered)


def turns_of(model: DALLE) -> Tensor:
    """Return cosine and sine of each entry's angle at each position, [position, 2, dim_head]."""
    return model.transformer.rotary(torch.float32).transpose(1, 2).repeat_interleave(2, dim=-1).contiguous()


def read(q: Tensor, k: Tensor, v: Tensor, text: Tensor, codes: Tensor, mask: Tensor) -> Tensor:
    """Return what a position reads of the text part, of slots and of itself; one softmax runs over all three."""
    (text_keys, text_values), (keys, values) = text, codes
    q = q * q.shape[-1] ** -0.5
    scores = [
        q @ text_keys.transpose(-1, -2),
        (q[..., None, :] @ keys.transpose(-1, -2)).squeeze(-2),
        (q * k).sum(-1, keepdim=True),
    ]
    sizes = [text_keys.shape[-2], keys.shape[-2], 1]
    of_text, of_codes, own = (torch.cat(scores, dim=-1) + mask).softmax(-1).split(sizes, dim=-1)
    return of_text @ text_values + (of_codes[..., None, :] @ values).squeeze(-2) + own * v


class Pictures(nn.Module):
    """Pictures [picture, height, width, 3] of codes [picture, code], from 0 to 255, as `VQGAN.decode` rounds them."""

    def __init__(self, vqgan: VQGAN) -> None:
        super().__init__()
        self.vqgan = vqgan

    def forward(self, codes: Tensor) -> Tensor:
        scaled = (self.vqgan.to_pixels(codes).clamp(-1, 1) + 1) * 127.5
        return scaled.round().to(torch.uint8).permute(0, 2, 3, 1)


class Scores(nn.Module):
    """CLIP's scores [picture] of pictures as above, and ids [1, text] of a caption that the end of text fills up."""

    def __init__(self, ranker: CLIPRanker) -> None:
        super().__init__()
        self.model = ranker.model
        processor = ranker.processor
        self.register_buffer("mean", torch.tensor(processor.image_mean)[:, None, None])
        self.register_buffer("std", torch.tensor(processor.image_std)[:, None, None])

    def forward(self, ids: Tensor, pictures: Tensor) -> Tensor:
        model = self.model
        pixels = (pictures.permute(0, 3, 1, 2).float() / 255 - self.mean) / self.std
        seen = model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)
        said = model.text_projection(model.text_model(input_ids=ids).pooler_output)
        return F.normalize(seen, dim=-1) @ F.normalize(said, dim=-1)[0]


def slot_counts(model: DALLE) -> dict[str, int]:
    """Return how many slots a block of each kind is given: a whole column's, but one at a time."""
    grid = model.config.grid
    return {"column": grid, "convolution": ROWS * grid, "row": grid}


def example(model: DALLE, prompts: int = 2, samples: int = 3) -> tuple:
    """Return inputs of `Step` of this many sequences, in which nothing came before."""
    config, slots = model.config, slot_counts(model)
    heads = (config.heads,)
    return (
        torch.zeros(prompts, samples, dtype=torch.int32),
        torch.zeros(2, config.dim_head),
        torch.zeros(2 * config.depth, prompts, samples, config.dim // 2),
        torch.zeros(config.depth, 2, prompts, *heads, config.text_part, config.dim_head),
        [torch.zeros(config.text_part + slots[kind] + 1) for kind in sorted(set(config.kinds))],
        [torch.zeros(2, prompts, *heads, samples, slots[kind], config.dim_head) for kind in config.kinds],
    )


def export_step(model: DALLE, file: Path) -> None:
    """Write `Step` of a model as an ONNX graph."""
    step, inputs = Step(model), example(model)
    prompt, sample = torch.export.Dim("prompt"), torch.export.Dim("sample")
    moving = (
        {0: prompt, 1: sample},
        None,
        {1: prompt, 2: sample},
        {2: prompt},
        [None for _ in inputs[4]],
        [{1: prompt, 3: sample} for _ in inputs[5]],
    )
    names = ["ids", "turns", "shifted", "text"]
    names += [f"mask_{kind}" for kind in step.kinds] + [f"codes_{block}" for block in range(model.config.depth)]
    export(step, inputs, moving, names, ["logits", "halves", "remembered"], file)


def export_pictures(vqgan: VQGAN, file: Path) -> None:
    """Write `Pictures` of a VQ-GAN as an ONNX graph."""
    codes = torch.zeros(3, vqgan.config.grid**2, dtype=torch.int32)
    export(Pictures(vqgan), (codes,), ({0: torch.export.Dim("picture")},), ["codes"], ["pictures"], file)


def export_scores(ranker: CLIPRanker, file: Path) -> None:
    """Write `Scores` of a CLIP as an ONNX graph."""
    config = ranker.model.config
    ids = torch.ones(1, config.text_config.max_position_embeddings, dtype=torch.int32)
    pictures = torch.zeros(3, *[config.vision_config.image_size] * 2, 3, dtype=torch.uint8)
    moving = (None, {0: torch.export.Dim("picture")})
    export(Scores(ranker), (ids, pictures), moving, ["ids", "pictures"], ["scores"], file)


def export(
    module: nn.Module, inputs: tuple, moving: tuple, names: Sequence[str], results: Sequence[str], file: Path
) -> None:
    """Write a module as an ONNX graph, with weights in half precision where that loses nothing."""
    with torch.no_grad(), warnings.catch_warnings():
        # Lists of inputs keep the exporter's own names of moving axes, which nobody reads.
        warnings.filterwarnings("ignore", message="# ONNX model has different number of inputs", category=UserWarning)
        program = torch.onnx.export(
            module.eval(),
            inputs,
            input_names=names,
            output_names=results,
            dynamic_shapes=moving,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    graph = halved(program.model_proto)
    forget_sources(graph.graph)
    onnx.checker.check_model(graph)
    file.write_bytes(graph.SerializeToString())


def forget_sources(graph: onnx.GraphProto) -> None:
    """Remove what the exporter tells of each part: lines of Python, with the folders of this machine."""
    for part in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the same function, with float32 weights stored as float16 where each of their values is one.

    onnxruntime casts them back once, when it loads them.
    """
    casts = []
    for tensor in model.graph.initializer:
        values, name = numpy_helper.to_array(tensor), tensor.name
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if values.dtype != np.float32 or values.size < 256 or (values != half).any():
            continue
        tensor.CopyFrom(numpy_helper.from_array(half, f"{name}_half"))
        casts.append(onnx.helper.make_node("Cast", [tensor.name], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend(nodes)
    return model
