"""Peers that are killed or stopped in the middle of a round, with all that they have started: they do it themselves."""

import asyncio
import os
import signal

from hivemind.averaging.group_info import GroupInfo

from dalle_lib.swarm.averaging.averagers import RunAverager
from dalle_lib.swarm.averaging.introductions import read
from dalle_lib.swarm.averaging.state_averager import RunStateAverager


def epochs_of(averager: RunAverager, group: GroupInfo) -> set[int]:
    """Return the epochs that the peers of a group tell it."""
    told = zip(group.gathered, group.peer_ids, strict=True)
    return {read(gathered, peer, averager.prefix).epoch for gathered, peer in told}


async def end_in(averager: RunAverager, group: GroupInfo, number: signal.Signals, sends_before: int) -> None:
    """Send a signal to this peer and all that it has started, once it has sent so many parts to each reducer."""
    runner = await averager._running_groups[group.group_id]
    sent = runner.tensor_part_container.sent
    while sum(len(parts) >= sends_before for parts in sent) < len(sent) - 1:
        await asyncio.sleep(0)
    os.killpg(0, number)


def freeze_after(epoch: int, sends_before: int) -> None:
    """Make this peer stop, with all that it has started, in the round of parameters after that epoch.

    It has sent so many parts to each reducer then.
    """
    average = RunStateAverager._aggregate_with_group

    async def average_and_freeze(self, group_info, *args, **kwargs):
        if epoch in epochs_of(self, group_info):
            asyncio.create_task(end_in(self, group_info, signal.SIGSTOP, sends_before))  # noqa: RUF006
        return await average(self, group_info, *args, **kwargs)

    RunStateAverager._aggregate_with_group = average_and_freeze
