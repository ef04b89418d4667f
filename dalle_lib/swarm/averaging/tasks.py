"""Keeps asyncio tasks alive until they are done."""

import asyncio


class KeepsTasks:
    """Keeps each task of an averager's process alive until it is done; as a base class it stands before an averager.

    asyncio holds tasks by weak references only, and hivemind 1.1.12 holds none: now and then the garbage collector
    ends a round, or the answer to a groupmate, that still waits for something ("Task was destroyed but it is
    pending"). The others then wait for this peer until they time out.
    """

    async def _step(self, **kwargs) -> None:
        # hivemind starts each round as a task, in which this is the first code of ours to run.
        alive = _keep_tasks(asyncio.get_running_loop())
        alive.add(asyncio.current_task())
        try:
            await super()._step(**kwargs)
        finally:
            alive.discard(asyncio.current_task())


def _keep_tasks(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task]:
    """Make `loop` hold each new task until it is done, and return the set that holds them."""
    factory = loop.get_task_factory()
    if not isinstance(factory, _TaskKeeper):
        factory = _TaskKeeper()
        loop.set_task_factory(factory)
    return factory.alive


class _TaskKeeper:
    """A task factory, as `asyncio.loop.set_task_factory` takes, that holds the tasks it makes until they are done."""

    def __init__(self) -> None:
        self.alive: set[asyncio.Task] = set()

    def __call__(self, loop, coroutine, **kwargs) -> asyncio.Task:
        task = asyncio.Task(coroutine, loop=loop, **kwargs)
        self.alive.add(task)
        task.add_done_callback(self.alive.discard)
        return task
