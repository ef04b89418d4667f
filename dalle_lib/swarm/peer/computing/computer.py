"""Computer: the gradient of some batches on one device, in as small pieces as memory needs."""

import functools
import gc
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dalle_lib.machine import NotEnoughRoom
from dalle_lib.model import DALLE
from dalle_lib.one_line import in_one_line
from dalle_lib.streaming.batches import Batch
from dalle_lib.swarm.averaging.leaving import Interrupted
from dalle_lib.swarm.peer.computing.recorded import Recorded
from dalle_lib.swarm.peer.computing.room import is_out_of_memory
from dalle_lib.swarm.peer.computing.scale import LossScale
from dalle_lib.swarm.peer.computing.way import Way, first_way

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gradient:
    """What is known of a gradient that is in the parameters' `.grad`."""

    losses: list[float]
    """Mean loss of each batch."""
    norm: float
    scale: float
    """By which the loss was multiplied meanwhile; `.grad` is divided by it again."""

    @property
    def loss(self) -> float:
        """Mean of the batches' losses."""
        return sum(self.losses) / len(self.losses)

    @property
    def is_finite(self) -> bool:
        """Whether it can be handed to others."""
        return math.isfinite(self.norm) and all(map(math.isfinite, self.losses))

    @property
    def is_overflow(self) -> bool:
        """Whether the loss scale alone is to blame: the parameters are as good as before."""
        return not self.is_finite and self.scale > 1 and all(map(math.isfinite, self.losses))


class Computer:
    """Computes gradients of one model on one device.

    Where memory runs out, it computes fewer samples at a time from then on, and the same rows again. `tell` is then
    told the new way, and why.
    """

    is_over: Callable[[], bool] = staticmethod(lambda: False)
    """Says that the peer is to leave: a layer that would begin then raises Interrupted, as a batch may take minutes."""

    def __init__(
        self, model: DALLE, device: torch.device, tell: Callable[[Way, str], None] = lambda way, why: None
    ) -> None:
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # streams and recordings are of this thread's current device
        self.model, self.device, self.tell = model, device, tell
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._eager = model.transformer.layer_functions
        self._compiled: tuple[Callable[..., Tensor], ...] = ()
        self._recorded: Recorded | None = None
        self.way, self.scale = first_way(model, device), LossScale(is_fixed=True)
        self.use(self.way)

    def use(self, way: Way) -> None:
        """Compute this way from now on; what a trial has compiled or recorded stays, where it can be used again."""
        if (way.precision == "float16") == self.scale.is_fixed:
            self.scale = LossScale(is_fixed=not self.scale.is_fixed)
        transformer = self.model.transformer
        transformer.is_reversible = way.is_reversible
        transformer.layer_functions = self._eager
        if way.is_compiled and not self._compiled:
            transformer.compile_layers()
            self._compiled = transformer.layer_functions
        layers = self._compiled if way.is_compiled else self._eager
        # A recording is not interrupted: it takes a moment, and a GPU might compute nothing any more after that.
        transformer.layer_functions = layers if way.is_recorded else tuple(map(self._unless_over, layers))
        self.way, self._recorded = way, None

    def _unless_over(self, layer: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(layer)
        def begun(*inputs) -> Tensor:
            if self.is_over():
                raise Interrupted
            return layer(*inputs)

        return begun

    def gradient(self, batches: Sequence[Batch]) -> Gradient:
        """Set the parameters' `.grad` to the mean gradient over the samples of these batches.

        Raises NotEnoughRoom if not even one sample fits into memory, and Interrupted if the peer is to leave.
        """
        while True:
            try:
                return self.once(batches)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                told = in_one_line(error)[:200]
            # Not before here: until then the error holds the frames, and these all tensors of the step.
            self.take_less(max(map(len, batches)), told)

    def once(self, batches: Sequence[Batch]) -> Gradient:
        """Do what `gradient` does in this way and no other. Raises what is told where memory runs out."""
        self.forget()
        losses, scale = self._summed(batches), self.scale.value
        gradients = [parameter.grad for parameter in self.parameters]
        if scale != 1:
            torch._foreach_mul_(gradients, 1 / scale)
        norm = float(torch.nn.utils.get_total_norm(gradients))
        found = Gradient(torch.stack(losses).tolist(), norm, scale)
        if found.is_finite or found.is_overflow:
            self.scale.note(found.is_overflow)
        return found

    def forget(self) -> None:
        """Set the parameters' `.grad` to zero, where it is."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def free(self) -> None:
        """Give memory back that a step left when it failed."""
        self._recorded = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def sent(self, batch: Batch) -> Batch:
        """Return a batch on the device; the copy to a GPU goes on while this returns."""
        if self.device.type != "cuda":
            return batch
        pinned = (ids.pin_memory() for ids in (batch.text, batch.codes, batch.input_codes))
        try:
            return Batch(*pinned, batch.receipt).to(self.device)
        except Exception as error:  # also of memory that is pinned
            if not is_out_of_memory(error):
                raise
            return batch  # the step itself may find some

    def _summed(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Add the scaled gradients of all pieces to `.grad`, and return the mean loss of each batch."""
        samples, losses = sum(map(len, batches)), []
        for batch in batches:
            pieces = [piece.to(self.device) for piece in batch.split(self.way.batch)]
            each = [self._add(piece, self.scale.value * len(piece) / samples) * len(piece) for piece in pieces]
            losses.append(torch.stack(each).sum() / len(batch))
        return losses

    def _add(self, piece: Batch, factor: float) -> Tensor:
        """Add the gradient of `factor` times the mean loss of a piece to `.grad`, and return that loss."""
        if self.way.is_recorded and len(piece) == self.way.batch:
            if self._recorded is None:
                self._recorded = Recorded(self.model, self.parameters, piece, self.autocast)
            if not self._recorded.is_stale:
                return self._recorded(piece, factor)
            self.use(replace(self.way, is_recorded=False))
        with self.autocast():
            loss = self.model(piece.text, piece.codes, piece.input_codes).loss
        (loss * factor).backward()
        return loss.detach()

    def autocast(self, **options) -> torch.autocast:
        """Return the context of a forward pass in this way's precision."""
        dtype, is_half = getattr(torch, self.way.precision), self.way.precision != "float32"
        return torch.autocast(self.device.type, dtype if is_half else None, enabled=is_half, **options)

    def take_less(self, largest: int, told: str) -> None:
        """Choose a way that needs less memory than this one, which computed up to `largest` samples at a time.

        Raises NotEnoughRoom if there is none.
        """
        self.free()
        at_once = min(self.way.batch, largest)
        if at_once > 1:
            less = replace(self.way, batch=at_once // 2, is_recorded=False)  # no thread may copy during a recording
        elif not self.way.is_reversible or self.way.is_recorded:
            less = replace(self.way, batch=1, is_reversible=True, is_recorded=False)
        else:
            raise NotEnoughRoom(
                f"expected room for one sample at a time, but the memory of {self.device} has none ({told}). End other "
                "programs that use it, or train on another device: see --device. `dalle-lib memory` says what a model "
                "needs."
            )
        self.use(replace(less, samples_per_s=None))
        logger.info("memory ran out: %s", told)
        self.tell(self.way, f"memory ran out with {at_once} at a time")
