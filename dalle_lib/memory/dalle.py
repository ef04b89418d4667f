"""This kit's own model, run in symbols."""

from types import SimpleNamespace
from typing import ClassVar

from dalle_lib.memory.graph import Tensor
from dalle_lib.memory.models import Model, Run, Shape


class DALLE(Model):
    """This kit's `dalle_lib.model.DALLE`: two streams, token shift, rotated queries, keys and values.

    All layers but the last share 4 sets of weights by turns, or as many as are `distinct`.
    """

    defaults: ClassVar[dict] = {
        "dim": 1024, "depth": 64, "heads": 16, "dim_head": 64, "text_length": 256, "text_vocab": 32100,
        "image_vocab": 8192, "grid": 32,
    }  # fmt: skip
    attentions: ClassVar[tuple[str, ...]] = ("sdpa",)
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "fp16", "bf16")
    takes_any_length: ClassVar[bool] = False
    has_dropout: ClassVar[bool] = False

    def build(self) -> None:
        c = self.config
        inner = c.heads * c.dim_head
        period = min(self.distinct or 4, c.depth - 1)
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
        kinds = len({"row", "column"} if sets > 2 else {"row"}) + 1
        self.table_bytes = kinds * self.shape.sequence**2 + (self.shape.sequence + 1) * (c.dim_head // 3 // 2 * 12)

    @property
    def shape(self) -> Shape:
        c = self.config
        rows, length = self.text_rows + c.image_vocab, c.text_length + c.grid**2
        return Shape(hidden=c.dim, layers=c.depth, heads=c.heads, sequence=length, vocabulary=rows)

    def loss(self, run: Run) -> Tensor:
        tape, c = run.tape, self.config
        text, codes = c.text_length, c.grid**2
        ids = tape.given(run.batch * (text + 1), 8), tape.given(run.batch * (codes - 1), 8)
        x = tape.concatenate(*[tape.embed(i, self.table) for i in ids])
        turns = tape.given(run.sequence * c.dim_head // 2, 8)
        x1 = x2 = x
        del x
        for weights in self.blocks:
            x1 = run.through(lambda x2, x1, w=weights: self.attention_half(run, w, x1, x2, turns), x2, x1)
            x2 = run.through(lambda x1, x2, w=weights: self.feed_forward_half(run, w, x1, x2), x1, x2)
        x = tape.scale(tape.add(x1, x2))
        x = tape.layer_norm(x, *self.last_norm, width=c.dim)
        with tape.part("logits and loss"):
            parts = ((text, self.text_rows), (codes, c.image_vocab))
            read = [tape.slice(x, run.batch * length * c.dim) for length, _ in parts]
            if run.batch > 1:
                read = [tape.copy(part) for part in read]
            logits = [
                tape.linear(part, self.table, self.bias, share=rows / self.table.shape[0])
                for part, (_, rows) in zip(read, parts, strict=True)
            ]
            losses = [
                tape.cross_entropy(part, run.batch * length) for part, (length, _) in zip(logits, parts, strict=True)
            ]
            return tape.add(*losses)

    def attention_half(self, run: Run, w: SimpleNamespace, x1: Tensor, x2: Tensor, turns: Tensor) -> Tensor:
        """Return the first stream after a block's attention has read the second."""
        tape, c = run.tape, self.config
        h = self.shift(run, tape.layer_norm(x2, *w.norm1, width=c.dim))
        h = tape.cast(tape.linear(h, *w.qkv), 4)
        turned = tape.make("rotate", [h], h.count, 4, [turns.storage])
        q, k, v = tape.chunks(tape.cast(turned, tape.half or tape.width), 3)
        mask = tape.given(run.sequence**2, q.width)
        tape.flops += 4 * q.count * run.sequence
        h = tape.attention(q, k, v, run.tokens * c.heads, mask)
        return tape.add(x1, tape.multiply(tape.linear(h, *w.out), w.scale1))

    def feed_forward_half(self, run: Run, w: SimpleNamespace, x1: Tensor, x2: Tensor) -> Tensor:
        """Return the second stream after a block's feed-forward layer has read the first."""
        tape, c = run.tape, self.config
        h = self.shift(run, tape.layer_norm(x1, *w.norm2, width=c.dim))
        value, gate = tape.chunks(tape.linear(h, *w.expand), 2)
        h = tape.multiply(value, tape.keeps_input("gelu", gate))
        return tape.add(x2, tape.multiply(tape.linear(h, *w.contract), w.scale2))

    def shift(self, run: Run, x: Tensor) -> Tensor:
        """Return `x` with half of each position's entries taken from its neighbours."""
        tape, moved = run.tape, x.count // 2
        padded = tape.make("pad", [tape.slice(x, moved)], moved + run.batch * self.config.dim // 2, x.width)
        parts = [tape.gather(tape.slice(padded, padded.count // 2), moved // 2) for _ in range(2)]
        return tape.concatenate(*parts, tape.slice(x, x.count - moved))
