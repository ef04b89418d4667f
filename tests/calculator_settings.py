"""Random settings of the calculator and the planner, and what the Python code says of them."""

import json
import random
import subprocess
import sys
from typing import Any, get_args

from dalle_lib.cli.run.plan import describe_plan
from dalle_lib.dashboard.estimates import details, verdict_sentence
from dalle_lib.memory import GPUS, PRESETS, Training, advise, estimate, gpu_named, largest_batch
from dalle_lib.memory.dalle import DALLEDescription
from dalle_lib.memory.presets import describe
from dalle_lib.memory.training import Offload, OptimizerName, Precision
from dalle_lib.planning import Machines, Work, plan_run, reducers_enough, what_if
from dalle_lib.run import EMBEDDED_RUNS, RunCard

OWN = "another one"
MAX_BATCH = 512
CONFIGS: list[dict[str, Any]] = [
    {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 5, "num_attention_heads": 8, "vocab_size": 9001,
     "intermediate_size": 1376, "num_key_value_heads": 2, "architectures": ["LlamaForCausalLM"]},
    {"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 3, "num_attention_heads": 14,
     "num_key_value_heads": 2, "intermediate_size": 4864, "tie_word_embeddings": True, "rope_scaling": None},
    {"model_type": "mistral", "num_hidden_layers": 2, "hidden_act": "relu", "max_position_embeddings": 640},
    {"model_type": "t5", "d_model": 320, "num_layers": 2, "num_decoder_layers": 3, "feed_forward_proj": "gated-gelu"},
    {"model_type": "gpt2", "n_embd": 96, "n_layer": 1, "n_head": 3, "n_inner": 211, "activation_function": "gelu"},
    {"model_type": "bert", "hidden_size": 128, "num_hidden_layers": 2, "hidden_act": "relu"},
    {"model_type": "gptj", "n_embd": 256, "n_layer": 3, "n_head": 4, "rotary_dim": 16, "vocab_size": 700},
    {"model_type": "dalle", "dim": 96, "depth": 7, "heads": 3, "dim_head": 16, "text_length": 11, "text_vocab": 300,
     "image_vocab": 500, "grid": 12},
    {"model_type": "opt", "hidden_size": 768},
    {"model_type": "gpt2", "n_layer": 0},
    {"model_type": "dalle", "dim": 96},
]  # fmt: skip
"""Models that are no presets, with each architecture and each branch of its description; the last three are refused."""


def random_settings(number: int, seed: int) -> list[dict[str, Any]]:
    """Return settings of the calculator's knobs, as the page holds them: each knob takes each of its values."""
    rng = random.Random(seed)
    return [_settings(rng) for _ in range(number)]


def _settings(rng: random.Random) -> dict[str, Any]:
    model = rng.choice([*PRESETS, *[OWN] * len(CONFIGS)])
    config = json.dumps(rng.choice(CONFIGS)) if model == OWN else ""
    layer = rng.choice(["plain", "checkpointing", "reversible", "plain", "checkpointing", "reversible", "both"])
    half = rng.random() < 0.5  # the kit's own model takes only some of these
    return {
        "model": model, "config": config, "gpu": rng.choice([*GPUS, "12.5"]),
        "batch": rng.choice([1, 1, 2, 3, 17, 200]),
        "sequence": None if half else rng.choice([1, 2, 63, 200]), "optimizer": rng.choice(get_args(OptimizerName)),
        "precision": rng.choice(["fp32", "bf16"] if half else get_args(Precision)),
        "offload": rng.choice(["none", *get_args(Offload)]),
        "attention": "" if half else rng.choice(["", "sdpa", "eager"]),
        "distinct_layers": rng.choice([0, 0, 1, 2, 5]), "checkpointing": layer in ("checkpointing", "both"),
        "reversible": layer in ("reversible", "both"), "embeddings_32bit": rng.random() < 0.5,
        "accumulates": rng.random() < 0.5, "dropout": not half and rng.random() < 0.5, "swarm": rng.random() < 0.3,
        "utilisation": rng.randint(10, 60), "mbit_per_s": rng.choice([1, 50, 1000]), "advises": rng.random() < 0.3,
    }  # fmt: skip


def calculated(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what the notebook's calculator shows for these settings."""
    try:
        fields = json.loads(settings["config"]) if settings["model"] == OWN else {}
        if fields.get("model_type") == "dalle" and (left := [x for x in DALLEDescription.defaults if x not in fields]):
            return {"error": f"lacks {', '.join(left)}"}
        model = fields or settings["model"]
        described = describe(model)
        is_own_kind = isinstance(described, DALLEDescription)
        whole = not described.takes_any_length or settings["sequence"] == described.shape.sequence
        changed = {
            "attention": settings["attention"] or None,
            "distinct_layers": None if is_own_kind else settings["distinct_layers"] or None,
            "sequence": None if whole else settings["sequence"],
        }
        names = Training.__dataclass_fields__
        training = Training(**{name: settings[name] for name in names} | changed)
        gpu = gpu_named(settings["gpu"])
        result = estimate(model, training, gpu=gpu)
        largest = largest_batch(model, training, gpu.size, MAX_BATCH, gpu)
        told = details(result, gpu, largest, MAX_BATCH, settings["utilisation"] / 100, settings["mbit_per_s"])
        steps = advise(model, training, gpu.size, gpu.has_bf16, gpu) if settings["advises"] else []
    except ValueError as error:
        return {"error": str(error)}
    return {
        "result": json.loads(json.dumps(result.as_dict())), "largest": largest, "details": told,
        "verdict": verdict_sentence(result, gpu),
        "advice": [[step.name, step.verdict, list(step.estimate.gpu_range), step.estimate.ram] for step in steps],
    }  # fmt: skip


def calculated_apart(settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `calculated` of each, by a process of its own: what checks shapes in tests keeps tensors alive a while."""
    told = subprocess.run([sys.executable, __file__], input=json.dumps(settings), capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-3000:]
    return json.loads(told.stdout)


CALCULATE = """(all) => all.map((settings) => {
  const found = dalle.calculator.estimate(settings);
  if (found.error) return { error: found.error };
  const steps = settings.advises ? dalle.calculator.advise(settings) : [];
  const advice = steps.map(({ name, verdict, estimate }) => [name, verdict, estimate.gpu_range, estimate.ram]);
  return { result: found.result, largest: found.largest, details: found.details, verdict: found.verdict, advice };
})"""
"""The same in JavaScript, for a list of settings."""


def random_plans(number: int, seed: int) -> list[dict[str, Any]]:
    """Return settings of the planner, as its page holds them."""
    rng = random.Random(seed)
    return [_plan(rng) for _ in range(number)]


def _plan(rng: random.Random) -> dict[str, Any]:
    changes = {"epochs": rng.choice([1, 77, 10**6]), "target_batch_size": rng.choice([16, 512, 100_000]),
               "matchmaking_s": rng.choice([0, 3.5, 60])}  # fmt: skip
    return {
        "run": rng.choice(["paper", *EMBEDDED_RUNS]),
        "changes": {name: value for name, value in changes.items() if rng.random() < 0.3},
        "groups": [_group(rng) for _ in range(rng.randint(1, 4))],
    }


def _group(rng: random.Random) -> dict[str, Any]:
    trains = rng.random() < 0.85
    return {
        "name": rng.choice(["home", "vm", "Rechner"]), "count": rng.choice([0.5, 1, 2, 5, 40, 300]),
        "samples_per_second": rng.choice([0.2, 0.5, 3.25, 100]) if trains else 0, "up_mbps": rng.choice([1, 10, 900.5]),
        "down_mbps": rng.choice([9, 50, 1000]), "reduces": trains and rng.random() < 0.5,
        "batch_size": rng.choice([1, 4, 32]), "hours_a_day": rng.choice([24, 8, 1.5]),
        "starts_a_day": rng.choice([1, 3, 0]), "hour_price": rng.choice([0, 1.25]), "gb_price": rng.choice([0, 0.09]),
    }  # fmt: skip


def planned(settings: dict[str, Any]) -> str:
    """Return what `dalle-lib run plan` prints for these settings, or why it refuses them."""
    run = settings["run"]
    try:
        work = (Work.paper() if run == "paper" else Work.of(RunCard.load(run))).with_changes(**settings["changes"])
        plan = plan_run(work, [Machines(**group) for group in settings["groups"]])
    except ValueError as error:
        return str(error)
    return describe_plan(plan, what_if(plan), reducers_enough(plan))


PLAN = "(all) => all.map(dalle.calculator.plan).map((found) => found.error || found.lines.join('\\n'))"
"""The same in JavaScript, for a list of settings."""


if __name__ == "__main__":
    print(json.dumps([calculated(one) for one in json.load(sys.stdin)]))
