"""What a peer has computed in an epoch."""

from dataclasses import dataclass, field

from dalle_lib.streaming import Receipt
from dalle_lib.streaming.batches import Batch
from dalle_lib.swarm.process.evidence import BatchLoss


@dataclass
class EpochSoFar:
    """What this peer has computed since its last epoch ended."""

    started: float
    """When it began, in seconds of an `AwakeClock`."""
    samples: int = 0
    losses: list[float] = field(default_factory=list)
    """Mean loss of each batch."""
    receipts: list[Receipt] = field(default_factory=list)
    """Which rows the batches were made from."""

    trained: str = ""
    """The last batch on which the epoch's own parameters were tried, and its loss (`evidence.BatchLoss`)."""

    def add(self, batch: Batch) -> None:
        """Note which rows a batch was made from; those that follow each other at once become one receipt."""
        if batch.receipt is None:
            return
        joined = self.receipts[-1].joined(batch.receipt) if self.receipts else None
        self.receipts[-1:] = [joined] if joined else [*self.receipts[-1:], batch.receipt]

    def count(self, batch: Batch, loss: float, epoch: int | None) -> None:
        """Note that the gradient of a batch counts, with the mean loss on it.

        `epoch` is that of the parameters; None where they are not those that the others have.
        """
        self.samples += len(batch)
        self.losses.append(loss)
        if batch.receipt is not None and epoch is not None:
            self.trained = str(BatchLoss(epoch, batch.receipt.start, len(batch), loss))
