"""The calculator's description of this kit's model, `dalle_lib.model.DALLE`."""

from functools import partial
from types import SimpleNamespace
from typing import ClassVar

from dalle_lib.memory.graph import Tensor
from dalle_lib.memory.models import ForwardPass, ModelDescription, Shape

BODY = ("row", "column", "row", "row")
"""`dalle_lib.model.config.BODY`: kinds of attention of the first blocks, repeated with the same weights."""
STRIP = 64
"""`dalle_lib.model.attention.STRIP`: the most codes of a strip of several lines."""
REACH = 2
"""`dalle_lib.model.attention.REACH`: rows above its strip that a code sees in "convolution" attention."""


class DALLEDescription(ModelDescription):
    """`dalle_lib.model.DALLE`: two streams, token shift, rotated queries, keys and values.

    The last layer has weights of its own. All others take turns with as many sets of weights as `BODY` has kinds, or
    with `distinct` sets.
    """

    defaults: ClassVar[dict] = {
        "dim": 1024, "depth": 64, "heads": 16, "dim_head": 64, "text_length": 256, "text_vocab": 32100,
        "image_vocab": 8192, "grid": 32,
    }  # fmt: skip
    attentions: ClassVar[tuple[str, ...]] = ("sdpa",)
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "fp16", "bf16")
    takes_any_length: ClassVar[bool] = False
    has_dropout: ClassVar[bool] = False

    def declare_parameters(self) -> None:
        c = self.config
        inner = c.heads * c.dim_head
        period = min(self.distinct or len(BODY), c.depth - 1)
        sets = period + 1
        shared = [
            SimpleNamespace(
                qkv=self.dense(f"attentions.{i}.qkv", 3 * inner, c.dim, bias=False),
                out=self.dense(f"attentions.{i}.out", c.dim, inner),
                expand=self.dense(f"feed_forwards.{i}.expand", 8 * c.dim, c.dim),
                contract=self.dense(f"feed_forwards.{i}.contract", c.dim, 4 * c.dim),
            )
            for i in range(sets)
        ]
        self.blocks = [
            SimpleNamespace(
                norm1=self.norm(f"{i}.attention_norm", c.dim),
                scale1=self.parameter(f"{i}.attention_scale", c.dim),
                norm2=self.norm(f"{i}.feed_forward_norm", c.dim),
                scale2=self.parameter(f"{i}.feed_forward_scale", c.dim),
                **vars(shared[-1 if i == c.depth - 1 else i % period]),
            )
            for i in range(c.depth)
        ]
        self.last_norm = self.norm("norm", c.dim)
        self.text_rows = c.text_vocab + c.text_length
        self.table = self.embedding("head", self.text_rows + c.image_vocab, c.dim)
        self.bias = self.parameter("head.bias", self.text_rows + c.image_vocab)
        # One 4-byte angle for each position and each pair of a head's entries.
        self.table_bytes = (c.text_length + 1 + c.grid**2) * c.dim_head // 2 * 4
        self.kinds = (*(BODY[i % len(BODY)] for i in range(c.depth - 1)), "convolution")

    @property
    def shape(self) -> Shape:
        c = self.config
        rows, length = self.text_rows + c.image_vocab, c.text_length + c.grid**2
        return Shape(hidden=c.dim, layers=c.depth, heads=c.heads, sequence=length, vocabulary=rows)

    def loss(self, forward: ForwardPass) -> Tensor:
        tape, c = forward.tape, self.config
        text, codes = c.text_length, c.grid**2
        self.lengths = text + 1, codes
        x = tape.embed(tape.given(forward.batch * sum(self.lengths), 8), self.table)
        turns = tape.given(sum(self.lengths) * c.dim_head // 2, 8)
        x1 = x2 = x
        del x
        for kind, weights in zip(self.kinds, self.blocks, strict=True):
            look = partial(self.attention_half, forward, weights, kind, turns)
            x1 = forward.through(look, x1, x2)
            x2 = forward.through(partial(self.feed_forward_half, forward, weights), x2, x1)
        if forward.layer == "reversible":
            tape.autocast_copies.clear()
        x = tape.slice(tape.scale(tape.add(x1, x2)), forward.batch * (text + codes) * c.dim)
        del x1, x2
        x = tape.layer_norm(x, *self.last_norm, width=c.dim)
        with tape.part("logits and loss"):
            parts = (text, self.text_rows), (codes, c.image_vocab)
            weights = tape.split(self.table, *(rows * c.dim for _, rows in parts))
            biases = tape.split(self.bias, *(rows for _, rows in parts))
            read = tape.split(x, *(forward.batch * length * c.dim for length, _ in parts))
            if forward.batch > 1:  # autocast's cast makes the copy
                read = [tape.lowered(part) if tape.half else tape.copy(part) for part in read]
            logits = [
                tape.linear(part, weight, bias, outputs=rows)
                for part, weight, bias, (_, rows) in zip(read, weights, biases, parts, strict=True)
            ]
            losses = [
                tape.cross_entropy(part, forward.batch * length)
                for part, (length, _) in zip(logits, parts, strict=True)
            ]
            return tape.add(*losses)

    def attention_half(
        self, forward: ForwardPass, w: SimpleNamespace, kind: str, turns: Tensor, x1: Tensor, x2: Tensor
    ) -> Tensor:
        """Return the first stream after the attention of a block has read the second stream."""
        tape, c = forward.tape, self.config
        h = self.shift(forward, tape.layer_norm(x2, *w.norm1, width=c.dim))
        h = tape.cast(tape.linear(h, *w.qkv), 4)
        turned = tape.make("rotate", [h], h.count, 4, [turns.storage])
        heads = tape.chunks(tape.cast(turned, tape.half or tape.width), 3)
        del h, turned
        h = self.attend(forward, kind, *heads)
        return tape.add(x1, tape.multiply(tape.linear(h, *w.out), w.scale1))

    def attend(self, forward: ForwardPass, kind: str, *heads: Tensor) -> Tensor:
        """Return attention: text reads the text before it, each strip of codes reads all text and a few codes."""
        tape, c = forward.tape, self.config
        inner, (text, codes) = forward.batch * c.heads * c.dim_head, self.lengths
        (text_q, q), (text_k, k), (text_v, v) = (tape.split(x, text * inner, codes * inner) for x in heads)
        read_by_text = tape.attention(text_q, text_k, text_v, forward.batch * c.heads * text)
        strips, near = self.strips(kind)
        if kind == "column" or (forward.batch > 1 and strips > 1):
            q = tape.copy(q)
        keys = []
        for of_text, of_codes in (text_k, k), (text_v, v):
            if kind == "convolution":
                of_codes = tape.make("pad", [of_codes], codes * inner + REACH * c.grid * inner, of_codes.width)
                of_codes = tape.repeat(of_codes, strips * near * inner, is_view=True)
            elif kind == "column":
                of_codes = tape.copy(of_codes)
            keys.append(tape.concatenate(tape.repeat(of_text, strips * text * inner, is_view=True), of_codes))
            del of_codes
        read = tape.attention(q, *keys, forward.batch * c.heads * codes, self.mask(forward, kind))
        tape.flops += 4 * inner * (text * text + codes * (text + near))
        del keys
        if kind == "column":
            read = tape.copy(read)
        return tape.concatenate(read_by_text, read)

    def strips(self, kind: str) -> tuple[int, int]:
        """Return into how many strips the codes are cut, and how many codes are among the keys of each strip."""
        side = self.config.grid
        lines = max((n for n in range(2, side + 1) if side % n == 0 and n * side <= STRIP), default=1)
        return side // lines, side * (lines + REACH * (kind == "convolution"))

    def mask(self, forward: ForwardPass, kind: str) -> Tensor:
        """Return the mask that is added to the scores of a strip; windows differ from strip to strip."""
        strips, near = self.strips(kind)
        codes = self.config.grid**2 * forward.batch if kind == "convolution" else self.config.grid**2 // strips
        return forward.tape.given(codes * (self.lengths[0] + near), forward.tape.half or forward.tape.width)

    def feed_forward_half(self, forward: ForwardPass, w: SimpleNamespace, x2: Tensor, x1: Tensor) -> Tensor:
        """Return the second stream after the feed-forward layer of a block has read the first stream."""
        tape, c = forward.tape, self.config
        h = self.shift(forward, tape.layer_norm(x1, *w.norm2, width=c.dim))
        value, gate = tape.chunks(tape.linear(h, *w.expand), 2)
        h = tape.multiply(value, tape.keeps_input("gelu", gate))
        return tape.add(x2, tape.multiply(tape.linear(h, *w.contract), w.scale2))

    def shift(self, forward: ForwardPass, x: Tensor) -> Tensor:
        """Return `x` with half of the entries of each position taken from its neighbours."""
        tape, c = forward.tape, self.config
        quarter = x.count // 4
        first, second, own = tape.split(x, quarter, quarter, 2 * quarter)
        parts = tape.split(first, *(forward.batch * length * c.dim // 4 for length in self.lengths))
        first = tape.concatenate(*(tape.make("pad", [part], part.count, part.width) for part in parts))
        second = tape.make("pad", [second], second.count, second.width)
        second = tape.make("masked_fill", [second], second.count, second.width)
        return tape.concatenate(first, second, own)
