"""What a peer has computed in an epoch."""

import time
from dataclasses import dataclass, field

from dalle_lib.streaming import Receipt
from dalle_lib.streaming.batches import Batch


@dataclass
class EpochSoFar:
    """What this peer has computed since its last epoch ended."""

    started: float = field(default_factory=time.monotonic)
    samples: int = 0
    losses: list[float] = field(default_factory=list)
    """Mean loss of each batch."""
    receipts: list[Receipt] = field(default_factory=list)
    """Which rows the batches were made from."""

    def add(self, batch: Batch) -> None:
        """Note which rows a batch was made from; those that follow each other at once become one receipt."""
        if batch.receipt is None:
            return
        joined = self.receipts[-1].joined(batch.receipt) if self.receipts else None
        self.receipts[-1:] = [joined] if joined else [*self.receipts[-1:], batch.receipt]
