"""Which peers meet: those of one epoch when parameters are averaged, those of any epoch for gradients."""

import asyncio
from types import SimpleNamespace

from hivemind.averaging.key_manager import GroupKeyManager, is_valid_group
from hivemind.utils import MSGPackSerializer

from dalle_lib.swarm.averaging.matchmaking import MemberMatchmaking
from dalle_lib.swarm.averaging.trust import Introduction


def test_parameters_are_averaged_within_an_epoch():
    async def keys(is_by_epoch: bool) -> list[str]:
        matchmaking = MemberMatchmaking.__new__(MemberMatchmaking)
        matchmaking.is_by_epoch, matchmaking.step_control = is_by_epoch, None
        matchmaking.lock_looking_for_group = asyncio.Lock()
        matchmaking.group_key_manager = GroupKeyManager(SimpleNamespace(peer_id=None), "run", "", None)
        found = []
        for epoch in 5, 6, 6:
            introduction = MSGPackSerializer.dumps(list(Introduction(epoch)))
            control = SimpleNamespace(data_for_gather=MSGPackSerializer.dumps([None, 0, introduction]))
            async with matchmaking.looking_for_group(control):
                found.append(matchmaking.group_key_manager.current_key)
        return found

    one, *two = asyncio.run(keys(is_by_epoch=True))
    assert one != two[0] == two[1]
    assert all(is_valid_group(key) for key in (one, *two))
    assert len(set(asyncio.run(keys(is_by_epoch=False)))) == 1
