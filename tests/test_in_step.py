"""A sender keeps in step with the others, and waits for no reducer that keeps its averages back."""

import asyncio

import pytest

from dalle_lib.swarm.averaging import in_step
from dalle_lib.swarm.averaging.in_step import AHEAD, InStep


def sender_of_many() -> InStep:
    return InStep(senders=100, part_bytes=2**19)


def test_few_senders_may_be_further_ahead_than_many():
    ahead = [InStep(senders, 2**17).ahead for senders in (1, 2, 8, 16, 100)]
    assert ahead == [64, 32, 8, AHEAD, AHEAD]


async def sent_by(sender: InStep, parts: int, sent: list[int]) -> None:
    for part in range(parts):
        await sender.turn(part)
        sent.append(part)


async def settle() -> None:
    """Let all tasks go on until each of them waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_each_average_makes_room_for_one_part_more(monkeypatch):
    monkeypatch.setattr(in_step, "PATIENCE_S", 600.0)

    async def run() -> None:
        sender, sent = sender_of_many(), []
        sending = asyncio.create_task(sent_by(sender, AHEAD + 3, sent))
        for answers in range(4):
            await settle()
            assert len(sent) == AHEAD + answers
            if answers < 3:
                sender.answered()
        await sending

    asyncio.run(asyncio.wait_for(run(), 60))


def test_averages_that_come_early_are_counted(monkeypatch):
    monkeypatch.setattr(in_step, "PATIENCE_S", 600.0)

    async def run() -> None:
        sender, sent = sender_of_many(), []
        for _ in range(3):
            sender.answered()
        await sent_by(sender, AHEAD + 3, sent)

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("answers", [0, 2])
def test_a_reducer_that_answers_no_more_gets_all_that_is_left(monkeypatch, answers):
    monkeypatch.setattr(in_step, "PATIENCE_S", 0.05)

    async def run() -> None:
        sender, sent = sender_of_many(), []
        sending = asyncio.create_task(sent_by(sender, 100, sent))
        for _ in range(answers):
            await settle()
            sender.answered()
        await sending
        assert sent == list(range(100))

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_sender_is_in_step_again_when_averages_come_again(monkeypatch):
    async def run() -> None:
        sender = sender_of_many()
        monkeypatch.setattr(in_step, "PATIENCE_S", 0.05)
        await sender.turn(AHEAD)  # which nobody answers in that time
        monkeypatch.setattr(in_step, "PATIENCE_S", 600.0)
        sender.answered()
        going_on = asyncio.create_task(sender.turn(AHEAD + 1))
        await settle()
        assert not going_on.done()
        sender.answered()
        await going_on

    asyncio.run(asyncio.wait_for(run(), 60))
