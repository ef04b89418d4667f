"""Senders of a round keep in step: none fills a reducer's link while the reducer waits for another one."""

import asyncio

AHEAD = 4
"""Parts that a sender may be ahead of the averages that have come back, at least: one more than a reducer reads ahead,
which would else count the wait for another sender as one for this sender's next part."""
ROOM_BYTES = 2**23
"""Bytes of parts that all senders of a reducer together may be ahead, if that is more: what is on the way in a link of
1 Gbit/s with a round trip of 67 ms."""
PATIENCE_S = 3.0
"""Seconds without an average after which a sender waits for none until one comes. Reducers of hivemind, and of earlier
versions of the kit, keep the averages of a peer that reduces nothing until it has sent all."""


class InStep:
    """Says when the next part may go to one reducer.

    A reducer averages a part when all senders have sent it. TCP may let one of many connections starve while the others
    fill the link with all that they have: then no part can be averaged until they are done, and no average travels
    while parts do, though the link is as wide in that direction.
    """

    def __init__(self, senders: int, part_bytes: int) -> None:
        """`senders` is the number of all who send parts of so many bytes to the reducer."""
        self.ahead = max(AHEAD, ROOM_BYTES // (senders * part_bytes))
        self.answers = 0
        """How many averages have come back."""
        self._another, self._waits = asyncio.Event(), True

    def answered(self) -> None:
        """Note that another average has come."""
        self.answers += 1
        self._waits = True  # one peer's pause may have held it up: the others' links need their turns after that, too
        self._another.set()

    async def turn(self, part: int) -> None:
        """Return when this part, counted from 0, may be sent."""
        while self._waits and part >= self.answers + self.ahead:
            self._another.clear()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._another.wait()
            except TimeoutError:
                self._waits = False
