"""Hub configs of small models, one of each family and of each of their variants."""

LLAMA = {
    "model_type": "llama", "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "intermediate_size": 100, "vocab_size": 700, "max_position_embeddings": 90,
}  # fmt: skip
SMALL = {
    "gpt2": {"model_type": "gpt2", "n_embd": 48, "n_layer": 3, "n_head": 3, "n_positions": 80, "vocab_size": 700},
    "bert": {
        "model_type": "bert", "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3,
        "intermediate_size": 100, "vocab_size": 700, "max_position_embeddings": 80,
    },
    "t5": {
        "model_type": "t5", "d_model": 48, "d_ff": 100, "num_layers": 3, "num_heads": 3, "d_kv": 20, "vocab_size": 700,
    },
    "gated t5": {
        "model_type": "t5", "d_model": 48, "d_ff": 100, "num_layers": 2, "num_heads": 3, "d_kv": 20, "vocab_size": 700,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
    },
    "gptj": {
        "model_type": "gptj", "n_embd": 48, "n_layer": 3, "n_head": 3, "rotary_dim": 8, "n_positions": 80,
        "vocab_size": 700,
    },
    "llama": LLAMA,
    "qwen2": LLAMA | {"model_type": "qwen2", "tie_word_embeddings": True},
    "mistral": LLAMA | {"model_type": "mistral", "head_dim": 12},
}  # fmt: skip
DALLE = {
    "model_type": "dalle", "dim": 48, "depth": 3, "heads": 3, "dim_head": 20, "text_length": 20, "text_vocab": 700,
    "image_vocab": 500, "grid": 12,
}  # fmt: skip
"""Its pictures have three strips of four lines each."""
