"""Why a round failed, as a volunteer is told it."""

import inspect
from types import SimpleNamespace

import pytest
from bare_optimizer import Averager
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.averager import DecentralizedAverager
from test_workarounds_optimizer import bare

from dalle_lib.swarm.averaging.optimizer import CollaborativeOptimizer
from dalle_lib.swarm.averaging.parameter_rounds import ParameterRounds
from dalle_lib.swarm.averaging.rounds import NO_GROUP
from dalle_lib.swarm.averaging.trust import Trust
from dalle_lib.swarm.averaging.who_reduces import WhoReduces

HIVEMINDS = f"Averaging step failed: {NO_GROUP}"


def test_hivemind_says_in_these_words_that_it_found_no_group():
    assert f'raise AllreduceException("{HIVEMINDS}")' in inspect.getsource(DecentralizedAverager._step)


@pytest.mark.usefixtures("no_event_loop")
@pytest.mark.parametrize(
    ("error", "told"),
    [(HIVEMINDS, "nobody to average with was found in time"), ("a part is\nmissing", "a part is missing")],
)
def test_a_round_without_a_group_is_told_in_plain_words(error, told, caplog):
    optimizer = bare(CollaborativeOptimizer, state_averager=Averager(), averaging_timeout=60.0)
    optimizer.dht, optimizer.tracker = SimpleNamespace(peer_id="own"), SimpleNamespace(who_reduces=WhoReduces(Trust()))
    handle = Averager().schedule_step(timeout=30.0)
    handle.set_exception(AllreduceException(error))
    group, failure = optimizer._outcome(handle)
    assert (group.counted, failure) == ({"own": 1.0}, f"this peer has its own gradient only: {told}")
    rounds = ParameterRounds(Averager(), every=5, timeout_s=30.0)
    rounds.look_for(4, b"", 30.0, leads=False)
    rounds.pending.set_exception(AllreduceException(error))
    assert rounds.collect() is None
    assert caplog.messages[-1] == f"averaging parameters failed: {told}"
