"""A peer whose month is used leaves after its epoch, and its supervisor starts it again in the next month."""

import time
from pathlib import Path

import pytest
from supervised import supervised
from waiting import wait_until

from dalle_lib.cli.lend import Finish, Pause
from dalle_lib.dashboard.words import news, state_in_words
from dalle_lib.swarm import Peer, PeerSettings, local_swarm
from dalle_lib.swarm.peer.holding import Holder
from dalle_lib.swarm.peer.traffic import require_traffic
from dalle_lib.swarm.process.events import EventLog, read_starts
from dalle_lib.swarm.process.join import RESTS
from dalle_lib.swarm.process.lending import ask
from dalle_lib.swarm.process.month import GB, Months, Traffic, day_of, next_month
from dalle_lib.swarm.process.standing import Standing

USED = Traffic(sent=int(2 * GB))
MONTH = {"name": "ada", "monthly_gb": 1.0}


def told(folder: Path) -> list[str]:
    return [event["event"] for start in read_starts(folder) for event in start]


def test_a_peer_that_left_for_the_month_is_started_again_with_its_hub_token_when_that_is_over(tmp_path):
    Months().add(Traffic())  # so that the script can write there
    file = Months().file(time.time())
    count = f'read token; echo "$token" >> {tmp_path}/tokens; [ -e {tmp_path}/again ] && exit 0; touch {tmp_path}/again'
    script = f"{count}; echo '{{\"sent\": {USED.sent}}}' > {file}; exit {RESTS}"
    with supervised(tmp_path, script, **MONTH) as supervisor:
        supervisor.stdin.write("hf_token\n")
        supervisor.stdin.flush()
        wait_until(lambda: told(tmp_path) == ["started", "resting"])
        standing = Standing.of(Peer(tmp_path))
        first = day_of(next_month(time.time()))
        assert (standing.state, state_in_words(standing)) == (
            "paused",
            f"Paused until {first}: this month's traffic is used",
        )
        file.unlink()
        supervisor.wait(60)
    assert told(tmp_path) == ["started", "resting", "started", "ended"]
    assert (tmp_path / "tokens").read_text() == "hf_token\nhf_token\n"


def test_a_peer_that_begins_in_a_used_month_waits_and_can_be_stopped_meanwhile(tmp_path):
    Months().add(USED)
    supervisor = supervised(tmp_path, "exit 1", **MONTH)
    supervisor.stdin.write("\n")
    supervisor.stdin.flush()
    wait_until(lambda: told(tmp_path) == ["started", "resting"])
    assert "this month's traffic is used." in news(read_starts(tmp_path)[-1])[0]
    supervisor.communicate("stop\n", timeout=60)
    assert supervisor.returncode == 0
    assert told(tmp_path) == ["started", "resting", "ended"]


def test_a_peer_with_minutes_of_its_own_does_not_rest(mini, tmp_path):
    Months().add(USED)
    supervisor = supervised(tmp_path, f"exit {RESTS}", max_minutes=5.0, **MONTH)
    supervisor.communicate("\n", timeout=60)
    assert supervisor.returncode == 0
    assert told(tmp_path) == ["started", "ended"]
    with pytest.raises(ValueError, match="a peer with --max-minutes does not wait for the next one"):
        require_traffic(mini, PeerSettings(run="emoji-mini", monthly_gb=1.0, max_minutes=5.0))


def test_a_peer_that_rests_leaves_when_it_is_asked_to_finish(tmp_path):
    Months().add(USED)
    with supervised(tmp_path, "exit 1", **MONTH) as supervisor:
        supervisor.stdin.write("\n")
        supervisor.stdin.flush()
        wait_until(lambda: told(tmp_path) == ["started", "resting"])
        Pause(folder=tmp_path.parent, name=tmp_path.name).run()
        Finish(folder=tmp_path.parent, name=tmp_path.name).run()
        assert supervisor.wait(60) == 0
    assert told(tmp_path) == ["started", "resting", "ended"]


def test_a_peer_whose_month_is_used_ends_its_epoch_first_and_rests_unless_it_was_asked_to_leave_for_good(tmp_path):
    is_used = False
    settings = PeerSettings(run="emoji-mini", monthly_gb=1.0)
    holder = Holder(settings, tmp_path, EventLog(tmp_path), is_month_used=lambda: is_used)
    holder.look(epoch=3)
    assert not holder.is_finished(4, has_handed_in=False)
    is_used = True
    holder.look(epoch=4)
    assert not holder.is_finished(4, has_handed_in=False)
    assert holder.is_finished(5, has_handed_in=False)
    assert holder.rests
    ask(tmp_path, "finish")
    holder.look(epoch=5)
    assert not holder.rests


@pytest.mark.chaos
@pytest.mark.long
def test_a_real_peer_leaves_when_its_month_is_used_and_comes_back_in_the_next(mini, swarm_folder):
    with local_swarm(mini, swarm_folder / "swarm") as swarm:
        others = {"host": "127.0.0.1", "batch_size": 8, "run": swarm.run}
        swarm.add(PeerSettings(name="bob", **others))
        ada = swarm.add(PeerSettings(name="ada", monthly_gb=0.02, max_upload_mbps=60.0, **others))
        ada.wait_for("resting", timeout_s=240)
        assert [event["event"] for event in ada.events()][-2:] == ["left", "resting"]
        used, rounds = Months().used(), [event for event in ada.events() if event["event"] == "averaged"]
        assert used.gigabytes >= 0.02
        assert used.sent >= sum(event["bytes_sent"] for event in rounds) > 0, "answers of a reducer count, too"
        assert used.received >= sum(event["bytes_received"] for event in rounds) > 0
        assert Standing.of(ada).state == "paused"
        Months().file(time.time()).unlink()
        wait_until(lambda: len(read_starts(ada.folder)) == 2, timeout_s=120)
        ada.wait_for("joined", timeout_s=240)
