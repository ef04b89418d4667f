"""What a run will take: figures that were computed by hand, and what must hold whatever the figures are."""

import json
from dataclasses import replace

import pytest
from command_line import answer
from hypothesis import given, settings
from hypothesis import strategies as st

from dalle_lib.cli import main
from dalle_lib.planning import Machines, Work, plan_run, reducers_enough, what_if
from dalle_lib.planning.constants import ROUND_SLOWDOWN, ROUND_START_S
from dalle_lib.run import RunCard

VM = Machines(name="vm", count=2, samples_per_second=0.5, up_mbps=1000, down_mbps=1000, reduces=True)
HOME = Machines(name="home", count=40, samples_per_second=0.5, up_mbps=20, down_mbps=100)


def quiet(**changes) -> Work:
    """Return work of a hundred million values without audits and with hardly a round of parameters."""
    options = {"tensors": (10**8,), "epochs": 100, "target_batch_size": 1000, "matchmaking_s": 3, "timeout_s": 6000}
    return Work(**{**options, "state_every": 10**9, "audits": 0.0, "delayed": False, **changes})


def test_forty_clients_send_five_gigabytes_to_the_reducers_of_the_papers_model_in_a_round():
    plan = plan_run(Work.paper().with_changes(state_every=10**9, audits=0), [VM, HOME])
    vm, home = plan.traffic
    assert plan.work.parameters == 125_894_244
    assert home.sent_per_epoch == pytest.approx(126e6, rel=0.02)
    # Half of what 40 clients and the other reducer send comes to each, and as much goes back.
    assert vm.received_per_epoch * 2 == pytest.approx(5.2e9, rel=0.06)
    assert vm.sent_per_epoch * 2 == pytest.approx(5.2e9, rel=0.06)


def test_peers_that_all_reduce_send_and_receive_twice_their_tensors_but_for_their_own_part():
    peers = replace(VM, count=4)
    (one,) = plan_run(quiet(), [peers]).traffic
    assert one.sent_per_epoch == pytest.approx(2 * 1e8 * 3 / 4, rel=0.05)
    assert one.received_per_epoch == pytest.approx(one.sent_per_epoch)


def test_uploads_of_4_bits_halve_what_clients_send_of_gradients_but_not_of_parameters(mini):
    averaging = mini.averaging.model_dump() | {"eight_bit_from": 1, "state_every": 5}
    four, eight = (
        plan_run(Work.of(mini.with_changes(averaging=averaging | {"upload_bits": bits})), [VM, HOME]) for bits in (4, 8)
    )
    assert four.work.up_bytes / eight.work.up_bytes == pytest.approx(4.125 / 8, rel=0.04)
    assert four.work.answer_bytes == eight.work.answer_bytes
    saved = eight.traffic[1].sent_per_epoch - four.traffic[1].sent_per_epoch
    assert saved == pytest.approx(eight.work.up_bytes - four.work.up_bytes, rel=0.05)  # audits send a little less, too


def test_seconds_of_an_epoch_by_hand():
    vm = replace(VM, count=1, samples_per_second=5, up_mbps=80, down_mbps=80)
    client = replace(HOME, count=1, samples_per_second=5, up_mbps=8, down_mbps=4)
    plan = plan_run(quiet(), [vm, client])
    assert plan.phases["computing"] == 1000 / 10
    assert plan.phases["last batch"] == pytest.approx(0.2 / 2)
    # A hundred megabytes go up at one megabyte a second, and meanwhile their average comes down at half of that.
    assert plan.phases["averaging"] == pytest.approx(ROUND_SLOWDOWN * 200, rel=0.02)
    assert plan.phases["matchmaking"] == ROUND_START_S
    assert plan.bottleneck == "the download of home"
    assert plan.days == pytest.approx(plan.epoch_s * 100 / 86_400)


def test_money_is_hours_and_what_is_sent():
    vm = replace(VM, count=2, hour_price=0.5, gb_price=0.1, hours_a_day=12)
    plan = plan_run(quiet(), [vm, HOME])
    sent_gb = plan.traffic[0].sent_per_day / 1e9
    assert plan.price == pytest.approx(plan.days * 2 * (12 * 0.5 + sent_gb * 0.1))


@settings(deadline=None, max_examples=60)
@given(st.floats(1, 1000), st.floats(1, 1000), st.floats(0.01, 20), st.integers(1, 60), st.floats(1, 10))
def test_more_of_anything_never_makes_an_epoch_longer(up, down, speed, count, more):
    home = replace(HOME, up_mbps=up, down_mbps=down, samples_per_second=speed, count=count)
    work = quiet(state_every=5, audits=1.0, delayed="step", codes=1024)
    before = plan_run(work, [VM, home]).epoch_s
    for name in "up_mbps", "down_mbps", "samples_per_second":
        faster = replace(home, **{name: more * getattr(home, name)})
        assert plan_run(work, [VM, faster]).epoch_s <= before * (1 + 1e-9), name


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 60), st.integers(1, 8), st.booleans())
def test_what_is_sent_in_rounds_is_received(clients, reducers, all_reduce):
    groups = [replace(VM, count=reducers)]
    groups += [replace(HOME, count=clients, reduces=all_reduce)] if clients else []
    plan = plan_run(quiet(), groups)
    sent, received = (
        sum(group.count * getattr(one, name) for group, one in zip(groups, plan.traffic, strict=True))
        for name in ("sent_per_epoch", "received_per_epoch")
    )
    assert sent == pytest.approx(received)


def test_reducers_are_enough_when_an_epoch_is_hardly_shorter_with_any_other_number_of_them():
    work = Work.paper()
    plan = plan_run(work, [VM, HOME])
    with_others = [plan_run(work, [replace(VM, count=n), HOME]).phases["averaging"] for n in range(2, 257)]
    one = plan_run(work, [replace(VM, count=1), replace(VM, name="vm 2", count=1, reduces=False), HOME])
    computing = plan.epoch_s - plan.phases["averaging"] - plan.phases["parameters"]
    times = [computing + averaging for averaging in [one.phases["averaging"], *with_others]]
    assert plan.phases["parameters"] == 0
    enough = reducers_enough(plan)
    assert enough > 1
    assert 0.95 * times[enough - 1] <= min(times) < 0.95 * times[enough - 2]


def test_reducers_do_not_count_by_what_they_compute():
    slow_home = replace(HOME, samples_per_second=0.01)
    counts = [
        reducers_enough(plan_run(Work.paper(), [replace(VM, samples_per_second=speed), slow_home]))
        for speed in (0.01, 0.5)
    ]
    assert counts == [1, 1]  # links at home take longest with one as with many


def test_of_volunteers_who_all_reduce_most_are_needed_and_no_more_than_there_are():
    everybody = replace(HOME, count=60, reduces=True)
    enough = reducers_enough(plan_run(Work.paper(), [everybody]))
    assert 40 < enough <= 60
    some = [replace(everybody, count=enough), replace(everybody, count=60 - enough, reduces=False)]
    assert plan_run(Work.paper(), some).epoch_s <= plan_run(Work.paper(), [everybody]).epoch_s / 0.95


def test_more_trainers_than_one_group_holds_are_told():
    def told(count: int, hours: float = 24) -> str:
        home = replace(HOME, count=count, hours_a_day=hours)
        return " ".join(w for w in plan_run(Work.paper(), [VM, home]).warnings if "at a time" in w)

    assert told(38) == told(300, hours=3) == ""
    assert told(60).startswith("62 trainers at a time: one group holds about 100, and of 60 in a simulation 96% ")
    assert "Let fewer in" not in told(60)
    assert "402 trainers at a time" in told(400)
    assert "of 400 in a simulation 0% averaged together (docs/averaging.md#how-many-peers-one-group-" in told(400)
    assert told(400).endswith("Let fewer in, or begin another run.")


def test_what_would_change_changes_it():
    plan = plan_run(Work.paper(), [VM, HOME])
    four, delayed, local = what_if(plan).values()
    assert four.round_s < plan.round_s
    assert delayed.epoch_s < plan.epoch_s
    assert delayed.traffic[1].sent_per_epoch == pytest.approx(plan.traffic[1].sent_per_epoch, rel=0.05)
    assert local.days < plan.days
    assert local.traffic[1].sent_per_day < plan.traffic[1].sent_per_day / 3


def test_what_would_go_wrong_is_told():
    told = plan_run(Work.paper(), [VM, replace(HOME, up_mbps=2)]).warnings
    assert any("is left out" in warning for warning in told)
    late = plan_run(Work.paper(), [VM, replace(HOME, batch_size=2000)]).warnings
    assert any("all wait for it" in warning for warning in late)
    quick = plan_run(Work.paper().with_changes(target_batch_size=16), [VM, HOME]).warnings
    assert any("less than matchmaking_s" in warning for warning in quick)


def test_a_card_says_what_the_work_is():
    card = RunCard.load("emoji-mini")
    work = Work.of(card)
    assert (work.epochs, work.target_batch_size) == (card.optimizer.total_epochs, card.averaging.target_batch_size)
    assert work.codes == 64


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("home=30,speed=0.5,up=10", "lacks down="),
        ("home=many,up=1,down=1", "expected a number after the = of 'home=many'"),
        ("home=1,up=0,down=1", "up_mbps must be above 0"),
        ("home=1,up=nan,down=1", "up_mbps must be a number"),
        ("home=1,sped=1,up=1,down=1", "did you mean"),
        ("vm=1,up=1,down=1,reduces", "only peers that train can reduce"),
        ("vm=1,up=1,down=1,hours=25", "a day has 24 hours"),
        ("vm=1,up=1,down=1,batch=0.5", "batch_size must be a positive whole number"),
    ],
)
def test_a_text_that_describes_no_machines_is_refused(text, told):
    with pytest.raises(ValueError, match="(?i)" + told.replace("(", r"\(")):
        Machines.parse(text)


def test_nobody_who_trains_or_reduces_is_a_mistake(monkeypatch):
    assert "nobody trains" in answer(monkeypatch, "run", "plan", "paper", "--machines", "vm=1,up=1,down=1")
    assert "nobody reduces" in answer(monkeypatch, "run", "plan", "paper", "--machines", "vm=2,speed=1,up=1,down=1")


def test_the_command_prints_and_draws_the_same_plan(tmp_path, monkeypatch, capsys):
    group = "friends=5,speed=2,up=20,down=50,reduces"
    chart = tmp_path / "plan.svg"
    arguments = ["dalle-lib", "run", "plan", "emoji-mini", "--machines", group]
    monkeypatch.setattr("sys.argv", [*arguments, "--json", "--plot", str(chart)])
    main()
    told = json.loads(capsys.readouterr().out)
    plan = plan_run(Work.of(RunCard.load("emoji-mini")), [Machines.parse(group)])
    assert told["epoch_s"] == pytest.approx(plan.epoch_s)
    assert told["trainer"]["ram_bytes"] > 1e9
    assert "matchmaking" in chart.read_text()
    monkeypatch.setattr("sys.argv", arguments)
    main()
    assert f"Epoch:    {plan.epoch_s:,.0f} s" in capsys.readouterr().out


def test_numbers_are_written_as_people_write_them(monkeypatch, capsys):
    groups = ["home=5,speed=0.5,up=10,down=100", "vm=2,speed=0.3,up=900,down=900,reduces"]
    monkeypatch.setattr("sys.argv", ["dalle-lib", "run", "plan", "paper", "--machines", *groups])
    main()
    told = capsys.readouterr().out
    assert "computing 1,321 s, last batch 2.22 s" in told
    assert "Reducers: 1 of vm would be enough, you have 2; with more, an epoch is hardly shorter." in told
    monkeypatch.setattr(
        "sys.argv", ["dalle-lib", "run", "plan", "emoji", "--machines", "pc=5,speed=2,up=9,down=9,reduces"]
    )
    main()
    told = capsys.readouterr().out
    assert "Run:      26." in told
    assert " minutes for 60 epochs" in told
    assert "Kit:      dalle-lib of any version whose peers speak protocol 4, as yours do." in told
    assert "0.0 days" not in told
