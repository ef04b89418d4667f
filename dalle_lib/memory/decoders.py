"""Descriptions of language models that read from left to right, as transformers runs them."""

from types import SimpleNamespace
from typing import ClassVar

from dalle_lib.memory.graph import Tensor
from dalle_lib.memory.models import ForwardPass, ModelDescription, activation, rms_norm
from dalle_lib.memory.tape import Tape


class GPT2(ModelDescription):
    """transformers' GPT2LMHeadModel."""

    fixed: ClassVar[dict] = {"tie_word_embeddings": True, "add_cross_attention": False}
    size_names: ClassVar[tuple[str, ...]] = ("n_embd", "n_layer", "n_head", "n_positions")
    defaults: ClassVar[dict] = {
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None,
        "activation_function": "gelu_new",
    }  # fmt: skip

    def declare_parameters(self) -> None:
        c = self.config
        inner = c.n_inner or 4 * c.n_embd
        self.words = self.embedding("wte", c.vocab_size, c.n_embd)
        self.positions = self.embedding("wpe", c.n_positions, c.n_embd)
        self.blocks = self.layers(
            lambda i: SimpleNamespace(
                norm1=self.norm(f"{i}.ln_1", c.n_embd),
                qkv=self.dense(f"{i}.c_attn", 3 * c.n_embd, c.n_embd),
                out=self.dense(f"{i}.attn.c_proj", c.n_embd, c.n_embd),
                norm2=self.norm(f"{i}.ln_2", c.n_embd),
                expand=self.dense(f"{i}.c_fc", inner, c.n_embd),
                contract=self.dense(f"{i}.mlp.c_proj", c.n_embd, inner),
            ),
            c.n_layer,
        )
        self.last_norm = self.norm("ln_f", c.n_embd)

    def loss(self, forward: ForwardPass) -> Tensor:
        tape, c = forward.tape, self.config
        ids = tape.given(forward.positions, 8)
        x = tape.embed(ids, self.words)
        x = forward.drop(tape.add(x, tape.embed(tape.given(forward.sequence, 8), self.positions)))
        mask = forward.causal_mask(tape.width)
        for weights in self.blocks:
            x = forward.through(lambda x, w=weights, mask=mask: self.block(forward, w, x, mask), x)
        del mask
        x = tape.layer_norm(x, *self.last_norm, width=c.n_embd)
        with tape.part("logits and loss"):
            logits = tape.linear(x, self.words)
            return tape.cross_entropy(tape.cast(logits, 4), forward.positions)

    def block(self, forward: ForwardPass, w: SimpleNamespace, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the stream `x` after one block."""
        tape, c = forward.tape, self.config
        h = tape.layer_norm(x, *w.norm1, width=c.n_embd)
        h = forward.attend(*tape.chunks(tape.linear(h, *w.qkv), 3), c.n_head, mask)
        x = tape.add(forward.drop(tape.linear(h, *w.out)), x)
        h = tape.layer_norm(x, *w.norm2, width=c.n_embd)
        h = activation(tape, c.activation_function, tape.linear(h, *w.expand))
        return tape.add(x, forward.drop(tape.linear(h, *w.contract)))


class GPTJ(ModelDescription):
    """transformers' GPTJForCausalLM."""

    fixed: ClassVar[dict] = {"tie_word_embeddings": False}
    size_names: ClassVar[tuple[str, ...]] = GPT2.size_names
    defaults: ClassVar[dict] = {
        "vocab_size": 50400, "n_positions": 2048, "n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64,
        "n_inner": None, "activation_function": "gelu_new",
    }  # fmt: skip
    attentions: ClassVar[tuple[str, ...]] = ("eager",)

    def declare_parameters(self) -> None:
        c = self.config
        h, inner = c.n_embd, c.n_inner or 4 * c.n_embd
        self.table_bytes = c.n_layer * c.n_positions * c.rotary_dim * 4  # each layer has angles of its own
        self.words = self.embedding("wte", c.vocab_size, h)
        self.blocks = self.layers(
            lambda i: SimpleNamespace(
                norm=self.norm(f"{i}.ln_1", h),
                **{x: self.dense(f"{i}.{x}_proj", h, h, bias=False) for x in "qkv"},
                out=self.dense(f"{i}.out_proj", h, h, bias=False),
                expand=self.dense(f"{i}.fc_in", inner, h),
                contract=self.dense(f"{i}.fc_out", h, inner),
            ),
            c.n_layer,
        )
        self.last_norm = self.norm("ln_f", h)
        self.head = self.dense("lm_head", c.vocab_size, h)

    def loss(self, forward: ForwardPass) -> Tensor:
        tape, c = forward.tape, self.config
        x = forward.drop(tape.embed(tape.given(forward.positions, 8), self.words))
        mask = forward.causal_mask(tape.width)
        for weights in self.blocks:
            x = forward.through(lambda x, w=weights, mask=mask: self.block(forward, w, x, mask), x)
        del mask
        x = tape.layer_norm(x, *self.last_norm, width=c.n_embd)
        with tape.part("logits and loss"):
            logits = tape.linear(x, *self.head)
            return tape.cross_entropy(tape.cast(logits, 4), forward.positions)

    def block(self, forward: ForwardPass, w: SimpleNamespace, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the stream after one block, whose attention and feed-forward layer read the same norm of it."""
        tape, c = forward.tape, self.config
        h = tape.layer_norm(x, *w.norm, width=c.n_embd)
        q, k, v = tape.linear(h, *w.q), tape.linear(h, *w.k), tape.linear(h, *w.v)
        k, q = self.rotate(forward, k), self.rotate(forward, q)
        read = tape.linear(forward.attend(tape.cast(q, 4), tape.cast(k, 4), v, c.n_head, mask), *w.out)
        read = forward.drop(read)
        h = activation(tape, c.activation_function, tape.linear(h, *w.expand))
        return tape.add(tape.add(read, forward.drop(tape.linear(h, *w.contract))), x)

    def rotate(self, forward: ForwardPass, x: Tensor) -> Tensor:
        """Return queries or keys with the first `rotary_dim` entries of each head rotated."""
        tape, c = forward.tape, self.config
        count = forward.positions * c.n_head * c.rotary_dim
        turned, rest = tape.slice(x, count), tape.slice(x, x.count - count)
        cos, sin = (tape.given(forward.sequence * c.rotary_dim, x.width) for _ in range(2))
        straight = tape.multiply(turned, cos)
        first, second = (tape.slice(turned, count // 2) for _ in range(2))
        crossed = tape.multiply(tape.concatenate(tape.scale(second), first), sin)
        return tape.concatenate(tape.add(straight, crossed), rest)


class Llama(ModelDescription):
    """transformers' LlamaForCausalLM."""

    has_biased_keys: ClassVar[bool] = False
    """Whether queries, keys and values have biases even if the config says nothing of them."""

    defaults: ClassVar[dict] = {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": None, "head_dim": None, "max_position_embeddings": 2048,
        "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu",
    }  # fmt: skip

    def declare_parameters(self) -> None:
        c = self.config
        h, width = c.hidden_size, c.head_dim or c.hidden_size // c.num_attention_heads
        self.queries = c.num_attention_heads * width
        self.keys = (c.num_key_value_heads or c.num_attention_heads) * width
        self.head_width = width
        bias = c.attention_bias or self.has_biased_keys
        self.words = self.embedding("embed_tokens", c.vocab_size, h)
        self.blocks = self.layers(
            lambda i: SimpleNamespace(
                norm1=(self.parameter(f"{i}.input_layernorm", h),),
                q=self.dense(f"{i}.q_proj", self.queries, h, bias),
                k=self.dense(f"{i}.k_proj", self.keys, h, bias),
                v=self.dense(f"{i}.v_proj", self.keys, h, bias),
                out=self.dense(f"{i}.o_proj", h, self.queries, c.attention_bias),
                norm2=(self.parameter(f"{i}.post_attention_layernorm", h),),
                gate=self.dense(f"{i}.gate_proj", c.intermediate_size, h, c.mlp_bias),
                up=self.dense(f"{i}.up_proj", c.intermediate_size, h, c.mlp_bias),
                down=self.dense(f"{i}.down_proj", h, c.intermediate_size, c.mlp_bias),
            ),
            c.num_hidden_layers,
        )
        self.last_norm = (self.parameter("norm", h),)
        self.head = self.words if c.tie_word_embeddings else self.parameter("lm_head", c.vocab_size, h)

    def loss(self, forward: ForwardPass) -> Tensor:
        tape, c = forward.tape, self.config
        x = tape.embed(tape.given(forward.positions, 8), self.words)
        mask = forward.causal_mask(tape.width)
        turns = [tape.given(forward.sequence * self.head_width, tape.width) for _ in range(2)]
        for weights in self.blocks:
            x = forward.through(lambda x, w=weights, mask=mask, turns=turns: self.block(forward, w, x, mask, turns), x)
        del mask, turns
        x = rms_norm(tape, x, self.last_norm, c.hidden_size, whole=True)
        with tape.part("logits and loss"):
            logits = tape.linear(x, self.head)
            return tape.cross_entropy(tape.cast(logits, 4), forward.positions)

    def block(
        self, forward: ForwardPass, w: SimpleNamespace, x: Tensor, mask: Tensor | None, turns: list[Tensor]
    ) -> Tensor:
        """Return the stream `x` after one block."""
        tape, c = forward.tape, self.config
        h = rms_norm(tape, x, w.norm1, c.hidden_size, whole=True)
        q, k, v = tape.linear(h, *w.q), tape.linear(h, *w.k), tape.linear(h, *w.v)
        q, k = self.rotate(tape, q, *turns), self.rotate(tape, k, *turns)
        shares_keys = self.keys != self.queries
        # No efficient kernel of a GPU shares keys in float32: PyTorch stores all scores there.
        is_eager = forward.is_eager or (shares_keys and tape.device == "cuda" and tape.width == 4 and not tape.half)
        if is_eager and shares_keys:
            k, v = tape.repeat(k, q.count), tape.repeat(v, q.count)
        h = tape.linear(forward.attend(q, k, v, c.num_attention_heads, mask, scores=4, is_eager=is_eager), *w.out)
        x = tape.add(x, h)
        h = rms_norm(tape, x, w.norm2, c.hidden_size, whole=True)
        h = tape.multiply(activation(tape, c.hidden_act, tape.linear(h, *w.gate)), tape.linear(h, *w.up))
        return tape.add(x, tape.linear(h, *w.down))

    def rotate(self, tape: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return queries or keys rotated by the angles of their positions."""
        first, second = tape.slice(x, x.count // 2), tape.slice(x, x.count // 2)
        crossed = tape.multiply(tape.concatenate(tape.scale(second), first), sin)
        return tape.add(tape.multiply(x, cos), crossed)


class Mistral(Llama):
    """transformers' MistralForCausalLM."""

    defaults: ClassVar[dict] = Llama.defaults | {
        "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    }  # fmt: skip


class Qwen2(Llama):
    """transformers' Qwen2ForCausalLM, whose queries, keys and values have biases."""

    has_biased_keys: ClassVar[bool] = True
    defaults: ClassVar[dict] = Llama.defaults | {
        "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 32768,
    }  # fmt: skip
