"""What the doctor forecasts: speed, epochs, milestones and traffic, each held to the plan of the same machines."""

import json
import re
import time
from dataclasses import replace

import pytest

from dalle_lib.checks import forecast, speed
from dalle_lib.checks.company import OLD_S, Company, company_now
from dalle_lib.checks.forecast import Link, forecast_checks
from dalle_lib.checks.speed import UTILISATION, Speed, flops_of_a_sample, speed_here
from dalle_lib.machine import has_bf16_instructions
from dalle_lib.planning import Machines, Work, plan_run
from dalle_lib.swarm import PeerSettings
from dalle_lib.swarm.peer.computing.way import Way
from dalle_lib.swarm.peer.dry_run import Findings

HERE = PeerSettings(run="emoji-mini", device="cpu", threads=1)
TEN = Speed(low=10.0, high=10.0, where="a processor", how="by this test", is_measured=True)


@pytest.fixture
def rows(mini, monkeypatch):
    """Return a function that gives the rows of a machine of a known speed by their subjects."""

    def made(company: Company, link: Link, card=mini, found: Speed = TEN, settings: PeerSettings = HERE) -> dict:
        monkeypatch.setattr(forecast, "speed_here", lambda *_: found)
        return {row.what: row for row in forecast_checks(card, settings, company, link)}

    return made


def test_a_small_model_is_tried_and_its_duty_counts(mini, monkeypatch):
    monkeypatch.setattr(speed, "MEASURE_S", 0.0)
    monkeypatch.setattr(speed, "MAX_SAMPLE_S", float("inf"))  # a busy machine may take longer
    full = speed_here(mini.model, HERE)
    assert full.is_measured
    assert 0 < full.low <= full.high
    assert full.where.endswith(", 1 thread")
    precision = "(float32|bf16)" if has_bf16_instructions() else "float32"  # there, whichever is faster
    assert re.fullmatch(rf"measured: {precision}, \d+ samples? at a time, 1 thread(, layers run again .*)?", full.how)
    way = Way(precision="float32", is_reversible=False, batch=4)
    monkeypatch.setattr(speed, "_measured", lambda *_: (8.0, 12.0, way))
    half = speed_here(mini.model, replace(HERE, duty=0.5))
    assert (half.low, half.high, half.how) == (4.0, 6.0, "measured: float32, 4 samples at a time, 1 thread")


def test_of_a_large_model_only_matrices_are_multiplied(mini, monkeypatch):
    monkeypatch.setattr(speed, "MAX_SAMPLE_S", 0.0)
    monkeypatch.setattr(speed, "DALLE", lambda _: pytest.fail("a model was made"))
    found = speed_here(mini.model, HERE)
    assert not found.is_measured
    assert "a forecast" in found.how
    assert found.high / found.low == pytest.approx(UTILISATION[1] / UTILISATION[0])
    monkeypatch.setattr(speed, "_timed", lambda _: 2 * speed.SIDE**3 / 1e12)
    assert speed_here(mini.model, HERE).high == pytest.approx(UTILISATION[1] * 1e12 / flops_of_a_sample(mini.model))


def test_a_device_that_is_not_here_has_no_forecast_and_fails_nothing(mini):
    (row,) = forecast_checks(mini, replace(HERE, device="cuda:77"), Company(), Link(mbps=None, reduces=None))
    assert row.ok
    assert "not measured" in row.here
    assert row.remedy


def test_seconds_and_bytes_are_those_of_the_plan_with_the_peers_that_are_there(mini, rows):
    found = rows(Company(speeds=(20.0, 30.0), source="as told", epoch=10), Link(mbps=16.0, reduces=False))
    others = {"samples_per_second": 25.0, "up_mbps": 10.0, "down_mbps": 50.0}
    plan = plan_run(
        Work.of(mini).with_changes(codes=0),
        [
            Machines(name="you", samples_per_second=10.0, up_mbps=16.0, down_mbps=50.0, batch_size=8),
            Machines(name="one", reduces=True, **others),
            Machines(name="two", **others),
        ],
    )
    assert found["an epoch"].figures == {"others": [2], "epoch_s": [[plan.epoch_s] * 2]}
    assert "with the 2 peers that are there (as told)" in found["an epoch"].here
    assert found["an epoch"].here.endswith("17% of it here")
    days = 50 * plan.epoch_s / 86_400
    for way in "sent", "received":
        bytes_a_day = getattr(plan.traffic[0], f"{way}_per_day")
        assert found["traffic"].figures[f"{way}_bytes"] == pytest.approx([days * bytes_a_day] * 2)
    assert found["traffic"].here.endswith("until the run is complete")


def test_milestones_come_in_order_and_none_after_the_end_of_the_run(mini, rows):
    company, link = Company(speeds=(20.0,), epoch=45), Link(mbps=None, reduces=True)
    row = rows(company, link)["milestones"]
    assert list(row.figures["seconds"]) == ["first gradient that counted", "10 epochs"]
    assert rows(replace(company, epoch=55), link)["milestones"].here.count("10 epochs") == 0
    assert rows(replace(company, epoch=60), link)["milestones"].here.endswith("the run is complete")
    long = mini.with_changes(optimizer=mini.optimizer.model_copy(update={"total_epochs": 10_000}))
    row = rows(company, link, long)["milestones"]
    assert list(row.figures["seconds"])[:2] == ["first gradient that counted", "10 epochs"]
    assert list(row.figures["seconds"].values()) == sorted(row.figures["seconds"].values())
    assert "hour" not in row.here, "an hour after an hour is no news"


def test_without_a_look_both_cases_are_told_and_the_others_are_called_an_assumption(rows):
    found = rows(Company(why_unknown="nobody answers"), Link(mbps=None, reduces=None))
    assert found["an epoch"].figures["others"] == [0, forecast.TYPICAL_OTHERS]
    assert "alone" in found["an epoch"].here
    assert "7 others, an assumption" in found["an epoch"].here
    assert found["an epoch"].here.endswith("nobody could be asked who is there: nobody answers")
    for row in "milestones", "traffic":
        assert found[row].here.startswith("with 7 others, an assumption: "), row
    low, high = found["traffic"].figures["sent_bytes"]
    assert low < high, "as a client, and as one that averages for others"


def test_the_limits_that_were_given_count(rows):
    company, link = Company(speeds=(20.0, 20.0)), Link(mbps=40.0, reduces=True)
    by_night = replace(HERE, between=("22:00-07:00",))
    free, night = rows(company, link), rows(company, link, settings=by_night)
    assert night["an epoch"].here.endswith("9% of it here; means over days of which your schedule leaves 9 hours")
    assert night["traffic"].figures["sent_bytes"][0] < 0.5 * free["traffic"].figures["sent_bytes"][0]
    alone = [rows(Company(speeds=()), link, settings=chosen)["an epoch"] for chosen in (HERE, by_night)]
    (day_s, _), (night_s, _) = (row.figures["epoch_s"][0] for row in alone)
    assert night_s == pytest.approx(24 / 9 * day_s)
    slow = rows(company, link, settings=replace(HERE, max_upload_mbps=10.0))
    assert slow["traffic"].figures == rows(company, Link(mbps=10.0, reduces=False))["traffic"].figures


def test_alone_nothing_is_sent_and_no_epoch_counts(rows):
    found = rows(Company(speeds=()), Link(mbps=None, reduces=False))
    assert found["an epoch"].here.startswith("alone")
    assert found["traffic"].here == "none while nobody else is there"
    assert found["milestones"].here.startswith("epochs count with others only")
    assert not found["milestones"].figures["seconds"]


def test_a_slow_machine_of_a_long_run_has_a_day_of_traffic(mini, rows):
    long = mini.with_changes(optimizer=mini.optimizer.model_copy(update={"total_epochs": 1_000_000}))
    row = rows(Company(speeds=(1.0,)), Link(mbps=None, reduces=True), long, replace(TEN, low=0.01, high=0.02))
    assert row["traffic"].here.endswith(" a day")
    assert "0.01 to 0.02 samples a second" in row["speed"].here


def test_the_monitors_status_on_the_hub_tells_who_is_there_if_it_is_new(mini, hub):
    def told(written: float, **changes) -> Company:
        peers = [{"samples_per_s": 3.0, "state": "training"}, {"samples_per_s": 9.0, "state": "gone"}]
        peers += [{"samples_per_s": None, "state": "joining"}, {"samples_per_s": 4.0, "state": "paused"}]
        status = {"written": written, "epoch": 12, "peers": peers, **changes}
        hub.add("owner/kept", {"status.json": json.dumps(status).encode()})
        return company_now(
            mini.with_changes(checkpoints="owner/kept"), Findings(codecs=None, p2pd=None, first_peers={})
        )

    company = told(time.time() - 120)
    assert (company.speeds, company.epoch) == ((3.0, 0.0), 12)
    assert company.source == "as the run's monitor told 2 min ago"
    assert told(time.time() - OLD_S - 60) == Company(why_unknown="no first peer answers")
    for nonsense in {"peers": [7]}, {"epoch": None}, {"peers": [{"samples_per_s": -1, "state": "training"}]}:
        assert told(time.time(), **nonsense).speeds is None


def test_what_the_hash_table_told_goes_before_the_monitors_word(mini):
    found = Findings(codecs=None, p2pd=None, first_peers={}, look=None, others=[2.0, 5.0], epoch=9)
    company = company_now(mini.with_changes(checkpoints="owner/kept"), found)
    assert (company.speeds, company.epoch) == ((2.0, 5.0), 9)
