"""Models with an encoder, run in symbols as transformers runs them."""

from types import SimpleNamespace
from typing import ClassVar

from dalle_lib.memory.graph import Tensor
from dalle_lib.memory.models import Dense, Model, Run, Shape, activation, rms_norm


class BERT(Model):
    """transformers' BertForMaskedLM."""

    fixed: ClassVar[dict] = {"tie_word_embeddings": True, "add_cross_attention": False, "is_decoder": False}
    defaults: ClassVar[dict] = {
        "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu",
    }  # fmt: skip

    def build(self) -> None:
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

    def loss(self, run: Run) -> Tensor:
        tape, c = run.tape, self.config
        ids, positions, types = tape.given(run.tokens, 8), tape.given(run.sequence, 8), tape.given(run.sequence, 8)
        x = tape.add(tape.embed(ids, self.words), tape.embed(types, self.types))
        x = tape.add(x, tape.embed(positions, self.positions))
        x = run.drop(tape.layer_norm(x, *self.first_norm, width=c.hidden_size))
        for weights in self.blocks:
            x = run.through(lambda x, w=weights: self.block(run, w, x), x)
        h = activation(tape, c.hidden_act, tape.linear(x, *self.transform))
        h = tape.layer_norm(h, *self.last_norm, width=c.hidden_size)
        with tape.part("logits and loss"):
            logits = tape.linear(h, self.words, self.bias)
            return tape.cross_entropy(logits, run.tokens)

    def block(self, run: Run, w: SimpleNamespace, x: Tensor) -> Tensor:
        """Return what one block makes of `x`; its norms come after the sums."""
        tape, c = run.tape, self.config
        q, k, v = tape.linear(x, *w.q), tape.linear(x, *w.k), tape.linear(x, *w.v)
        h = run.attend(q, k, v, c.num_attention_heads)
        h = run.drop(tape.linear(h, *w.out))
        x = tape.layer_norm(tape.add(h, x), *w.norm1, width=c.hidden_size)
        h = activation(tape, c.hidden_act, tape.linear(x, *w.expand))
        h = run.drop(tape.linear(h, *w.contract))
        return tape.layer_norm(tape.add(h, x), *w.norm2, width=c.hidden_size)


class T5(Model):
    """transformers' T5ForConditionalGeneration: `sequence` tokens in, and as many out."""

    defaults: ClassVar[dict] = {
        "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": None,
        "num_heads": 8, "relative_attention_num_buckets": 32, "feed_forward_proj": "relu", "tie_word_embeddings": True,
    }  # fmt: skip
    attentions: ClassVar[tuple[str, ...]] = ("eager",)
    has_limit: ClassVar[bool] = False

    def build(self) -> None:
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

    def loss(self, run: Run) -> Tensor:
        tape, c = run.tape, self.config
        ids, shifted = tape.given(run.tokens, 8), tape.given(run.tokens, 8)
        read = run.drop(self.stack(run, ids, self.encoder, self.encoder_bias, self.encoder_norm, None))
        x = run.drop(self.stack(run, shifted, self.decoder, self.decoder_bias, self.decoder_norm, read))
        if c.tie_word_embeddings:  # transformers ties them always, and only scales by this
            x = tape.scale(x)
        with tape.part("logits and loss"):
            logits = tape.linear(x, self.words)
            return tape.cross_entropy(logits, run.tokens)

    def stack(self, run: Run, ids: Tensor, blocks, bias_table, norm: Dense, read: Tensor | None) -> Tensor:
        """Return what the encoder, or the decoder that has `read`, makes of ids."""
        tape, c = run.tape, self.config
        x = run.drop(tape.embed(ids, self.words))
        buckets = tape.given(run.sequence**2, 8)
        bias = tape.embed(buckets, bias_table)
        del buckets
        mask = None if read is None else tape.given(run.batch * run.sequence**2, tape.width)
        zeros = None
        if read is not None:
            zeros = tape.leaf(c.num_heads * run.sequence**2, tape.half or tape.width, run.layer != "plain")
        for weights in blocks:
            x = run.through(lambda *inputs, w=weights: self.block(run, w, mask, *inputs), x, bias, read, zeros)
        return rms_norm(tape, x, norm, c.d_model)

    def block(self, run: Run, w: SimpleNamespace, mask, x: Tensor, bias: Tensor, read, zeros) -> Tensor:
        """Return what one block makes of the stream `x`."""
        tape, c = run.tape, self.config
        h = rms_norm(tape, x, w.own.norm, c.d_model)
        x = tape.add(x, self.attention(run, w.own, h, h, bias, mask))
        if read is not None:
            h = rms_norm(tape, x, w.cross.norm, c.d_model)
            x = tape.add(x, self.attention(run, w.cross, h, read, zeros, None))
        h = rms_norm(tape, x, w.norm, c.d_model)
        gates = [tape.linear(h, *expand) for expand in w.expand]
        h = activation(tape, self.activation, gates[0])
        if self.is_gated:
            h = tape.multiply(h, gates[1])
        del gates
        h = tape.cast(run.drop(h), tape.width)
        return tape.add(x, run.drop(tape.linear(h, *w.contract)))

    def attention(self, run: Run, w: SimpleNamespace, x: Tensor, keys: Tensor, bias, mask) -> Tensor:
        """Return what `x` reads in `keys`."""
        tape = run.tape
        q, k, v = tape.linear(x, *w.q), tape.linear(keys, *w.k), tape.linear(keys, *w.v)
        h = run.attend(q, k, v, self.config.num_heads, mask, bias)
        return run.drop(tape.linear(h, *w.out))
