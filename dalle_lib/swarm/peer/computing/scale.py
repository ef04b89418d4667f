"""The loss scale that keeps small gradients in fp16 from becoming 0; it is this peer's own affair."""

LARGEST, SMALLEST = 2.0**24, 1.0
FIRST = 2.0**16
GROWS_AFTER = 2000
"""Gradients in a row without an overflow after which the scale is doubled, as torch.amp.GradScaler does."""


class LossScale:
    """A power of two by which the loss is multiplied, and the gradient divided. It is 1 for good if it `is_fixed`."""

    def __init__(self, is_fixed: bool) -> None:
        self.value, self.is_fixed, self._in_a_row = SMALLEST if is_fixed else FIRST, is_fixed, 0

    def note(self, overflowed: bool) -> None:
        """Halve the scale after a gradient that overflowed; double it after GROWS_AFTER in a row that did not."""
        if self.is_fixed:
            return
        self._in_a_row = 0 if overflowed else self._in_a_row + 1
        if overflowed:
            self.value = max(SMALLEST, self.value / 2)
        elif self._in_a_row == GROWS_AFTER:
            self.value, self._in_a_row = min(LARGEST, 2 * self.value), 0
