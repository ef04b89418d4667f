"""The optimizer that a run's card describes."""

import hivemind
import torch

from dalle_lib.optimizer import LAMB8bit, linear_warmup_schedule, parameter_groups
from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging import codec
from dalle_lib.swarm.averaging.local_updates import LocalUpdateOptimizer
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.averaging.trust import Trust


def build_optimizer(
    card: RunCard,
    model: torch.nn.Module,
    dht: hivemind.DHT,
    trust: Trust,
) -> CollaborativeOptimizer:
    """Return the run's optimizer over `model`, connected to its peers. `trust` has this peer's identity."""
    settings, groups = card.optimizer, parameter_groups(model, card.optimizer.weight_decay)
    options = shared_options(card, dht, trust) | {"params": groups}

    def lamb(groups: list[dict]) -> LAMB8bit:
        return LAMB8bit(
            groups,
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            max_grad_norm=settings.max_grad_norm,
            max_weight_norm=settings.max_weight_norm,
            bits=settings.bits,
        )

    def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        return linear_warmup_schedule(optimizer, settings.warmup_epochs, settings.total_epochs)

    if card.averaging.strategy == "gradients":
        return CollaborativeOptimizer(optimizer=lamb, scheduler=schedule, **options)
    inner = lamb(groups)
    return LocalUpdateOptimizer(
        inner=inner,
        inner_schedule=schedule(inner),
        outer_lr=card.averaging.outer_lr,
        outer_momentum=card.averaging.outer_momentum,
        **options,
    )


def shared_options(card: RunCard, dht: hivemind.DHT, trust: Trust) -> dict:
    """Return the options of a CollaborativeOptimizer that follow from a card, whatever is optimised."""
    averaging = card.averaging
    compression = codec.compression(averaging.eight_bit_from)
    return {
        "dht": dht,
        "trust": trust,
        "run_id": card.key,
        "total_epochs": card.optimizer.total_epochs,
        "target_batch_size": averaging.target_batch_size,
        "offload_optimizer": True,
        "delay_optimizer_step": bool(averaging.delayed),
        "delay_grad_averaging": averaging.delayed == "averaging",
        "average_state_every": averaging.state_every,
        "part_bytes": averaging.part_bytes,
        "matchmaking_time": averaging.matchmaking_s,
        "averaging_timeout": averaging.timeout_s,
        "next_chunk_timeout": averaging.timeout_s / 2,
        "grad_compression": compression,
        "state_averaging_compression": compression,
        # By default hivemind reads the others' progress every 3 to 10 s: too seldom for short epochs.
        "tracker_opts": {
            "max_refresh_period": min(10.0, averaging.matchmaking_s),
            "default_refresh_period": min(3.0, averaging.matchmaking_s / 3),
        },
    }
