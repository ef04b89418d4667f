"""Descriptions of models with an encoder, as transformers runs them."""

from types import SimpleNamespace
from typing import ClassVar

from dalle_lib.memory.graph import Tensor
from dalle_lib.memory.models import Dense, ForwardPass, ModelDescription, Shape, activation, rms_norm


class BERT(ModelDescription):
    """transformers' BertForMaskedLM."""

    fixed: ClassVar[dict] = {"tie_word_embeddings": True, "add_cross_attention": False, "is_decoder": False}
    defaults: ClassVar[dict] = {
        "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu",
    }  # fmt: skip

    def declare_parameters(self) -> None:
        c = self.config
        h = c.hidden_size
        self.words = self.embedding("word_embeddings", c.vocab_size, h)
        self.positions = self.embedding("position_embeddings", c.max_position_embeddings, h)
        self.types = self.embedding("token_type_embeddings", c.type_vocab_size, h)
        self.first_norm = self.norm("embeddings.LayerNorm", h)
        self.blocks = self.layers(
            lambda i: SimpleNamespace(
                q=self.dense(f"{i}.query", h, h),
                k=self.dense(f"{i}.key", h, h),
                v=self.dense(f"{i}.value", h, h),
                out=self.dense(f"{i}.attention.output", h, h),
                norm1=self.norm(f"{i}.attention.LayerNorm", h),
                expand=self.dense(f"{i}.intermediate", c.intermediate_size, h),
                contract=self.dense(f"{i}.output", h, c.intermediate_size),
                norm2=self.norm(f"{i}.output.LayerNorm", h),
            ),
            c.num_hidden_layers,
        )
        self.transform = self.dense("transform", h, h)
        self.last_norm = self.norm("transform.LayerNorm", h)
        self.bias = self.parameter("predictions.bias", c.vocab_size)

    def loss(self, forward: ForwardPass) -> Tensor:
        tape, c = forward.tape, self.config
        ids, positions, types = (
            tape.given(forward.positions, 8),
            tape.given(forward.sequence, 8),
            tape.given(forward.sequence, 8),
        )
        x = tape.add(tape.embed(ids, self.words), tape.embed(types, self.types))
        x = tape.add(x, tape.embed(positions, self.positions))
        x = forward.drop(tape.layer_norm(x, *self.first_norm, width=c.hidden_size))
        for weights in self.blocks:
            x = forward.through(lambda x, w=weights: self.block(forward, w, x), x)
        h = activation(tape, c.hidden_act, tape.linear(x, *self.transform))
        h = tape.layer_norm(h, *self.last_norm, width=c.hidden_size)
        with tape.part("logits and loss"):
            logits = tape.linear(h, self.words, self.bias)
            return tape.cross_entropy(logits, forward.positions)

    def block(self, forward: ForwardPass, w: SimpleNamespace, x: Tensor) -> Tensor:
        """Return `x` after one block, whose norms come after the sums."""
        tape, c = forward.tape, self.config
        q, k, v = tape.linear(x, *w.q), tape.linear(x, *w.k), tape.linear(x, *w.v)
        h = forward.attend(q, k, v, c.num_attention_heads)
        h = forward.drop(tape.linear(h, *w.out))
        x = tape.layer_norm(tape.add(h, x), *w.norm1, width=c.hidden_size)
        h = activation(tape, c.hidden_act, tape.linear(x, *w.expand))
        h = forward.drop(tape.linear(h, *w.contract))
        return tape.layer_norm(tape.add(h, x), *w.norm2, width=c.hidden_size)


class T5(ModelDescription):
    """transformers' T5ForConditionalGeneration: it reads `sequence` text tokens and predicts as many."""

    defaults: ClassVar[dict] = {
        "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": None,
        "num_heads": 8, "relative_attention_num_buckets": 32, "feed_forward_proj": "relu", "tie_word_embeddings": True,
    }  # fmt: skip
    attentions: ClassVar[tuple[str, ...]] = ("eager",)
    has_limit: ClassVar[bool] = False

    def declare_parameters(self) -> None:
        c = self.config
        self.inner = c.num_heads * c.d_kv
        self.is_gated = c.feed_forward_proj.startswith("gated-")
        self.activation = c.feed_forward_proj.removeprefix("gated-")
        if self.is_gated and self.activation == "gelu":
            self.activation = "gelu_new"
        self.words = self.embedding("shared", c.vocab_size, c.d_model)
        self.encoder_bias, self.decoder_bias = (
            self.embedding(f"{part}.relative_attention_bias", c.relative_attention_num_buckets, c.num_heads)
            for part in ("encoder", "decoder")
        )
        self.encoder = self.layers(lambda i: self.weights(f"encoder.{i}", cross=False), c.num_layers)
        self.decoder = self.layers(
            lambda i: self.weights(f"decoder.{i}", cross=True), c.num_decoder_layers or c.num_layers
        )
        self.encoder_norm = (self.parameter("encoder.norm", c.d_model),)
        self.decoder_norm = (self.parameter("decoder.norm", c.d_model),)

    def weights(self, name: str, cross: bool) -> SimpleNamespace:
        """Return the weights of one block."""
        c = self.config

        def attention(part: str) -> SimpleNamespace:
            return SimpleNamespace(
                norm=(self.parameter(f"{name}.{part}.norm", c.d_model),),
                out=self.dense(f"{name}.{part}.o", c.d_model, self.inner, bias=False),
                **{x: self.dense(f"{name}.{part}.{x}", self.inner, c.d_model, bias=False) for x in "qkv"},
            )

        return SimpleNamespace(
            own=attention("self"),
            cross=attention("cross") if cross else None,
            norm=(self.parameter(f"{name}.ff.norm", c.d_model),),
            expand=[self.dense(f"{name}.wi", c.d_ff, c.d_model, bias=False) for _ in range(1 + self.is_gated)],
            contract=self.dense(f"{name}.wo", c.d_model, c.d_ff, bias=False),
        )

    @property
    def shape(self) -> Shape:
        c = self.config
        layers = c.num_layers + (c.num_decoder_layers or c.num_layers)
        return Shape(hidden=c.d_model, layers=layers, heads=c.num_heads, sequence=512, vocabulary=c.vocab_size)

    def loss(self, forward: ForwardPass) -> Tensor:
        tape, c = forward.tape, self.config
        ids, shifted = tape.given(forward.positions, 8), tape.given(forward.positions, 8)
        read = forward.drop(self.stack(forward, ids, self.encoder, self.encoder_bias, self.encoder_norm, None))
        x = forward.drop(self.stack(forward, shifted, self.decoder, self.decoder_bias, self.decoder_norm, read))
        if c.tie_word_embeddings:  # transformers always ties the weights; this field only scales
            x = tape.scale(x)
        with tape.part("logits and loss"):
            logits = tape.linear(x, self.words)
            return tape.cross_entropy(logits, forward.positions)

    def stack(self, forward: ForwardPass, ids: Tensor, blocks, bias_table, norm: Dense, read: Tensor | None) -> Tensor:
        """Return the result of the encoder, or of the decoder, which also attends to `read`."""
        tape, c = forward.tape, self.config
        x = forward.drop(tape.embed(ids, self.words))
        buckets = tape.given(forward.sequence**2, 8)
        bias = tape.embed(buckets, bias_table)
        del buckets
        mask = None if read is None else tape.given(forward.batch * forward.sequence**2, tape.width)
        zeros = None
        if read is not None:
            zeros = tape.leaf(c.num_heads * forward.sequence**2, tape.half or tape.width, forward.layer != "plain")
        for weights in blocks:
            x = forward.through(lambda *inputs, w=weights: self.block(forward, w, mask, *inputs), x, bias, read, zeros)
        return rms_norm(tape, x, norm, c.d_model)

    def block(self, forward: ForwardPass, w: SimpleNamespace, mask, x: Tensor, bias: Tensor, read, zeros) -> Tensor:
        """Return the stream `x` after one block."""
        tape, c = forward.tape, self.config
        h = rms_norm(tape, x, w.own.norm, c.d_model)
        x = tape.add(x, self.attention(forward, w.own, h, h, bias, mask))
        if read is not None:
            h = rms_norm(tape, x, w.cross.norm, c.d_model)
            x = tape.add(x, self.attention(forward, w.cross, h, read, zeros, None))
        h = rms_norm(tape, x, w.norm, c.d_model)
        gates = [tape.linear(h, *expand) for expand in w.expand]
        h = activation(tape, self.activation, gates[0])
        if self.is_gated:
            h = tape.multiply(h, gates[1])
        del gates
        h = tape.cast(forward.drop(h), tape.width)
        return tape.add(x, forward.drop(tape.linear(h, *w.contract)))

    def attention(self, forward: ForwardPass, w: SimpleNamespace, x: Tensor, keys: Tensor, bias, mask) -> Tensor:
        """Return what the positions of `x` read from those of `keys`."""
        tape = forward.tape
        q, k, v = tape.linear(x, *w.q), tape.linear(keys, *w.k), tape.linear(keys, *w.v)
        h = forward.attend(q, k, v, self.config.num_heads, mask, bias)
        return forward.drop(tape.linear(h, *w.out))
