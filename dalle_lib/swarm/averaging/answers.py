"""Streams of tensors between peers: answers stay open until they are read, and wait for a slow reader or sender."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

HANG_UP_S = 3.0
"""Seconds that the caller has to close a stream before we do."""
LOOK_EVERY_S = 0.25
"""Seconds between looks at whether a sender that is waited for waits for this peer itself."""


async def until_hung_up(answers: AsyncIterator) -> AsyncIterator:
    """Iterate over the answers to a call, then wait for the caller to close the stream; stock peers never close it.

    The daemon of hivemind 1.1.12 resets a stream that the answering side closes, and the last answer may be lost.
    """
    is_answered = False
    async for answer in answers:
        yield answer
        is_answered = True
    if is_answered:
        await asyncio.sleep(HANG_UP_S)


@contextlib.contextmanager
def ends_after(limit_s: float | None) -> Iterator[None]:
    """End the task in which this context is open HANG_UP_S after so many seconds; None is no limit.

    A caller that does not read keeps hivemind's task from asking for the next message, and all that waits for it.
    """
    task, end = asyncio.current_task(), None
    if limit_s is not None:
        end = asyncio.get_running_loop().call_later(limit_s + HANG_UP_S, task.cancel)
    try:
        yield
    finally:
        if end is not None:
            end.cancel()


async def made_ahead(answers: AsyncIterator) -> AsyncIterator:
    """Iterate over answers, which are made no later if their reader is slow; those that wait are kept."""
    made: asyncio.Queue = asyncio.Queue()

    async def make() -> None:
        try:
            async for answer in answers:
                made.put_nowait(answer)
        finally:
            made.put_nowait(None)

    making = asyncio.create_task(make())
    try:
        while (answer := await made.get()) is not None:
            yield answer
        await making  # raises what went wrong
    finally:
        making.cancel()


async def within(
    parts: AsyncGenerator,
    limit_s: Callable[[float], float],
    owes: Callable[[], bool] = lambda: False,
    waited_s: float = 0.0,
) -> AsyncIterator:
    """Iterate over a sender's parts; raises TimeoutError once they have been waited for too long in all.

    `limit_s` is told for how many seconds they have been, `waited_s` at first, and says for how many they may be.
    `owes` says whether this peer still has answers for the sender, which keeps in step with them and so waits itself
    (`in_step`). Up to a quarter of the limit more is waited meanwhile: others give this peer up as a reducer after
    half of it more (`patience.REDUCER_PATIENCE`), and one that reads no answers must not bring that about.
    """
    owed_s = 0.0
    async with contextlib.aclosing(parts):
        while True:
            coming = asyncio.ensure_future(anext(parts, None))
            try:
                while not coming.done():
                    if waited_s >= (most_s := limit_s(waited_s)):
                        raise TimeoutError(f"it kept the others waiting for {most_s:.3g} s")
                    began = time.monotonic()
                    await asyncio.wait((coming,), timeout=min(LOOK_EVERY_S, most_s - waited_s))
                    more_s = time.monotonic() - began
                    if owes() and owed_s < most_s / 4:
                        owed_s += more_s
                    else:
                        waited_s += more_s
            finally:
                if coming.cancel():
                    await asyncio.wait((coming,))
            if (part := coming.result()) is None:
                return
            yield part
