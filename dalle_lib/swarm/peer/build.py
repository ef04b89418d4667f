"""The optimizer that a run's card describes."""

from functools import partial

import hivemind
import torch

from dalle_lib.optimizer import LAMB8bit, linear_warmup_schedule, parameter_groups
from dalle_lib.run import RunCard
from dalle_lib.swarm.averaging import codec
from dalle_lib.swarm.averaging.local_updates import LocalUpdateOptimizer, outer_optimizer
from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.averaging.run_optimizer import state_prefix
from dalle_lib.swarm.averaging.state_averager import RunStateAverager
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.averaging.upload import Upload


def build_optimizer(
    card: RunCard,
    model: torch.nn.Module,
    dht: hivemind.DHT,
    trust: Trust,
    upload: Upload | None = None,
) -> CollaborativeOptimizer:
    """Return the run's optimizer over `model`, connected to its peers. `trust` has this peer's identity."""
    groups = parameter_groups(model, card.optimizer.weight_decay)
    options = shared_options(card, dht, trust) | {"params": groups, "upload": upload}
    if card.averaging.strategy == "gradients":
        return CollaborativeOptimizer(optimizer=partial(_lamb, card), scheduler=partial(_schedule, card), **options)
    inner = _lamb(card, groups)
    return LocalUpdateOptimizer(
        inner=inner,
        inner_schedule=_schedule(card, inner),
        outer_lr=card.averaging.outer_lr,
        outer_momentum=card.averaging.outer_momentum,
        **options,
    )


def build_state_averager(card: RunCard, model: torch.nn.Module, dht: hivemind.DHT, trust: Trust) -> RunStateAverager:
    """Return what takes over states of the run's peers, for a peer that neither trains nor averages nor gives its own.

    It holds parameters and statistics as the trainers' do; those of `model` are the same after each state.
    """
    averaging, is_local = card.averaging, card.averaging.strategy == "local"
    outer = partial(outer_optimizer, lr=averaging.outer_lr, momentum=averaging.outer_momentum)
    return RunStateAverager(
        dht=dht,
        trust=trust,
        prefix=state_prefix(card.key),
        params=parameter_groups(model, card.optimizer.weight_decay),
        optimizer=outer if is_local else partial(_lamb, card),
        scheduler=None if is_local else partial(_schedule, card),
        offload_optimizer=True,
        custom_gradients=True,
        compression=codec.compression(averaging.eight_bit_from),
        part_size_bytes=averaging.part_bytes,
        min_matchmaking_time=averaging.matchmaking_s,
        allreduce_timeout=averaging.timeout_s,
        next_chunk_timeout=averaging.timeout_s / 2,
        client_mode=dht.client_mode,
        allow_state_sharing=False,
        start=True,
    )


def _lamb(card: RunCard, groups: list[dict]) -> LAMB8bit:
    settings = card.optimizer
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


def _schedule(card: RunCard, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    return linear_warmup_schedule(optimizer, card.optimizer.warmup_epochs, card.optimizer.total_epochs)


def shared_options(card: RunCard, dht: hivemind.DHT, trust: Trust) -> dict:
    """Return the options of a CollaborativeOptimizer that follow from a card, whatever is optimised."""
    averaging = card.averaging
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
        "longest_matchmaking_s": averaging.longest_matchmaking_s,
        "averaging_timeout": averaging.timeout_s,
        "next_chunk_timeout": averaging.timeout_s / 2,
        "grad_compression": codec.compression(averaging.eight_bit_from, averaging.upload_bits),
        "state_averaging_compression": codec.compression(averaging.eight_bit_from),
        # By default hivemind reads the others' progress every 3 to 10 s: too seldom for short epochs.
        "tracker_opts": {
            "max_refresh_period": min(10.0, averaging.matchmaking_s),
            "default_refresh_period": min(3.0, averaging.matchmaking_s / 3),
        },
    }
