"""How many spot instances pay, against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpu_runtime.scheduling.capacity_decision import (
    IterationForecast,
    LiveWindow,
    MeasuredTimes,
    RentingTerms,
    TrainingTime,
    decide_capacity,
    most_generators,
)
from gpu_runtime.simulator.renting import scale_generators

# Twelve batches of 10 s, 30 s of training; one reserved device at $10 an hour, spot devices at $2.
WORK = IterationForecast(batches=12, batch_s=10.0, rest_s=30.0)
TERMS = RentingTerms(reserved=1, reserved_usd_per_hour=10.0, spot_usd_per_hour=2.0, most=8)


@pytest.mark.parametrize(
    ("spot", "iteration_s", "usd"),
    [
        (0, 150.0, 10 * 150 / 3600),
        (1, 90.0, (10 + 2) * 90 / 3600),
        (2, 70.0, (10 + 4) * 70 / 3600),
        (3, 60.0, (10 + 6) * 60 / 3600),
        (4, 60.0, (10 + 8) * 60 / 3600),  # twelve batches on five devices: three turns, as on four
        (5, 50.0, (10 + 10) * 50 / 3600),
        (11, 40.0, (10 + 22) * 40 / 3600),
    ],
)
def test_an_iteration_takes_and_costs_what_the_formula_says(spot: int, iteration_s: float, usd: float):
    assert WORK.iteration_s(1 + spot) == iteration_s
    assert TERMS.cost_usd(WORK, spot) == pytest.approx(usd)


LEAVING = IterationForecast(batches=12, batch_s=10.0, rest_s=5.0, trainers=1, train_s=30.0)


@pytest.mark.parametrize(
    ("spot", "rollout_s", "iteration_s"),
    [
        (0, 120.0, 155.0),  # no other device can go on
        # The trainer goes on while the other needs more than 40 s for the rest: until 4 are left after
        # four turns. The other ends them at 80; the trainer trains from 40 on, and on the last one after 80.
        (1, 80.0, 80.0 + 2.5 + 5.0),
        (2, 50.0, 50.0 + 5.0 + 5.0),  # it goes on above 8: for two turns; 6 are left, the last two take 5 s
        (3, 40.0, 40.0 + 7.5 + 5.0),  # above 12: it does not begin
        (4, 30.0, 30.0 + 10.0 + 5.0),
        (12, 10.0, 10.0 + 30.0 + 5.0),  # it waits for the first turn
    ],
)
def test_trainers_that_leave_train_beside_the_rest_of_the_rollout(
    spot: int, rollout_s: float, iteration_s: float
):
    assert LEAVING.course(1 + spot)[0] == rollout_s
    assert LEAVING.iteration_s(1 + spot) == pytest.approx(iteration_s)


def test_trainers_that_stay_to_the_end_of_the_rollout_train_after_it():
    short = replace(LEAVING, batches=4, train_s=1.0)
    assert (short.course(2)[0], short.iteration_s(2)) == (20.0, 20.0 + 1.0 + 5.0)


def test_fewer_devices_pay_where_trainers_leave():
    """Dollar-seconds: 10 x 155, 12 x 87.5, 14 x 60, 16 x 52.5, 18 x 45, 20 x 45 for 0 to 5."""
    costs = [3600 * TERMS.cost_usd(LEAVING, spot) for spot in range(6)]
    assert costs == pytest.approx([1550, 1050, 840, 840, 810, 900])
    assert decide_capacity(LEAVING, TERMS, held=4).wanted == 4
    # Idle are the spot devices from the end of the rollout on: 15 s of 45.
    exploring = replace(TERMS, used_beside=math.inf)
    assert 3600 * exploring.cost_usd(LEAVING, 4) == pytest.approx(10 * 45 + 8 * 30)


def test_the_cheapest_number_is_wanted():
    """By the table above: 1500, 1080, 980, 960, 1080, 1000 dollar-seconds for 0 to 5; so three."""
    decision = decide_capacity(WORK, TERMS, held=3)
    assert decision.wanted == 3
    # A fourth saves no time at all; what it would cost more is its price, and what waits for it is lost.
    assert decision.reason == (
        "3 spot devices as before: 1 more would save 0.0 s of 60.0 s an iteration, which would then cost "
        "$0.3000 instead of $0.2667"
    )


def test_another_one_pays_while_what_it_saves_is_worth_more_than_its_price():
    """The third device saves 10 s, in which $14 an hour wait: 140 against its price of 2 x 60 = 120."""
    assert decide_capacity(WORK, TERMS, held=2).wanted == 3
    dearer = RentingTerms(1, 10.0, 2.6, most=8)  # 10 s x 15.2 = 152 against 2.6 x 60 = 156
    assert decide_capacity(WORK, dearer, held=2).wanted == 2


def test_devices_that_would_idle_are_given_back():
    """Two batches: one device beside the reserved one, whatever is held."""
    decision = decide_capacity(IterationForecast(batches=2, batch_s=10.0, rest_s=5.0), TERMS, held=6)
    assert decision.wanted == 1
    assert decision.reason.startswith(
        "1 spot device instead of 6: the last 5 save 0.0 s of 15.0 s an iteration"
    )
    assert decide_capacity(IterationForecast(0, 10.0, 5.0), TERMS, held=6).wanted == 0


def test_what_saves_little_is_not_given_back():
    """Five cost 1000 and three 960 dollar-seconds, 4 % less; at $1.60, 900 and 888, 1.3 % less."""
    assert decide_capacity(WORK, TERMS, held=5).wanted == 3
    cheaper = RentingTerms(1, 10.0, 1.6, most=8)
    assert cheaper.cost_usd(WORK, 3) == pytest.approx(888 / 3600)
    assert cheaper.cost_usd(WORK, 5) == pytest.approx(900 / 3600)
    assert decide_capacity(WORK, cheaper, held=5).wanted == 5


def test_a_start_must_pay_within_the_iterations_that_are_left():
    """From two to three saves 20 dollar-seconds an iteration; a start of 30 s costs 60."""
    for left, wanted in ((1, 2), (3, 2), (4, 3)):
        work = IterationForecast(12, 10.0, 30.0, start_s=30.0, left=left)
        for spot, started in ((1, 0), (2, 0), (4, 2)):
            usd = left * TERMS.cost_usd(work, spot) + started * 30.0 * 2.0 / 3600
            assert TERMS.cost_to_the_end(work, spot, held=2) == pytest.approx(usd)
        assert decide_capacity(work, TERMS, held=2).wanted == wanted


def test_devices_that_explore_beside_training_pay_sooner():
    """Their 30 s of training are of use: 10 x 50 + 10 x 20 = 700 dollar-seconds for five, 780 for three."""
    exploring = RentingTerms(1, 10.0, 2.0, most=8, used_beside=math.inf)
    assert exploring.cost_usd(WORK, 5) == pytest.approx(700 / 3600)
    assert exploring.cost_usd(WORK, 3) == pytest.approx(780 / 3600)
    # Of five, two train: the others are paid for all 50 s.
    assert replace(exploring, used_beside=2.0).cost_usd(WORK, 5) == pytest.approx(880 / 3600)
    assert decide_capacity(WORK, exploring, held=5).wanted == 5


def test_growth_is_bounded_by_the_waiting_of_training():
    """AstraFlow: f = 120 / 150 = .8 on one device, so five; where training hardly waits, none is added.

    With five devices within reach, three spot ones beside the reserved one are as fast as four.
    """
    assert most_generators(WORK, 1) == 5
    assert most_generators(WORK, 4) == 8  # f = 30 / 60
    assert most_generators(IterationForecast(100, 0.01, 99.0), 3) == 3
    assert most_generators(IterationForecast(6, 0.5, 9.0), 3) == 3, "f = 1 / 10"
    assert most_generators(IterationForecast(12, 10.0, 0.0), 3) == 12
    assert most_generators(IterationForecast(12, 10.0, 5.0, train_s=25.0), 1) == 5
    free = RentingTerms(1, 10.0, 0.0, most=20)
    assert decide_capacity(WORK, free, held=0).wanted == 3
    assert decide_capacity(WORK, free, held=3).wanted == 5


def test_before_anything_is_measured_all_are_wanted():
    measured = MeasuredTimes()
    assert measured.forecast(12, 3) is None
    decision = decide_capacity(None, TERMS, held=0)
    assert (decision.wanted, decision.reason) == (8, "nothing has been measured yet: 8 spot devices at first")
    measured.add_batch_time(10.0)
    assert measured.forecast(12, 3) is None, "an iteration is measured when the next one begins"
    measured.add_rest(30.0, None)
    assert measured.forecast(12, 3) == IterationForecast(12, 10.0, 30.0, 0.0, 3)


@pytest.mark.parametrize(
    ("updates", "rest_s", "beside_s", "rest", "train"),
    [
        (1, 12.0, 20.0, 2.0, 30.0),  # 10 of the 12 s were training, whose other 20 had passed before
        (1, 9.0, 20.0, 0.0, 30.0),  # the clocks of both are not read at once
        # Of 30 s in two updates 15 may begin early: of 25 s 5 were of those, and 15 of the other one.
        (2, 25.0, 10.0, 20.0, 15.0),
    ],
)
def test_training_beside_the_rollout_is_told_apart(updates, rest_s, beside_s, rest, train):
    measured = MeasuredTimes(updates)
    measured.add_batch_time(10.0)
    measured.add_rest(rest_s, TrainingTime(30.0, beside_s))
    assert measured.forecast(12, 3, trainers=1) == IterationForecast(12, 10.0, rest, 0.0, 3, 1, train)


def test_the_newest_iterations_count_by_their_median():
    measured = MeasuredTimes()
    for seconds in (99.0, 1.0, 2.0, 3.0, 50.0, 4.0):
        measured.add_batch_time(seconds)
        measured.add_rest(2 * seconds, None)
        measured.add_start(3 * seconds)
    assert measured.forecast(1, 1) == IterationForecast(1, 3.0, 6.0, 9.0, 1)


def test_astraflow_s_rule_is_followed_where_the_run_then_costs_no_more():
    """From one device to five: 10 x 150 = 1500 dollar-seconds become 18 x 60 = 1080; at 5 dollars, 1800."""
    assert scale_generators(WORK, TERMS, held=0) == 4
    assert scale_generators(WORK, RentingTerms(1, 10.0, 5.0, most=8), held=0) == 0
    assert scale_generators(WORK, RentingTerms(1, 10.0, 2.0, most=2), held=0) == 2, "the settings' most"
    assert scale_generators(None, TERMS, held=3) == 3
    # f = 1 / 100: hardly any waiting, and all that is generated is trained on.
    assert scale_generators(IterationForecast(1, 1.0, 99.0), TERMS, held=5) == 5


def test_trainers_go_on_while_a_batch_of_theirs_lets_both_end_sooner():
    window = LiveWindow()
    assert window.goes_on(0.5, 3, 10.0), "no batch has been timed"
    window.on_rolled_out([1.0, 2.0, 9.0])
    assert window.goes_on(0.5, 3, None), "no training has been timed"
    assert window.goes_on(0.5, 0, 10.0), "no other device can"
    # Three devices need 12 s for 18 batches of 2 s: as long as a batch and then 10 s of training.
    assert window.goes_on(18.5, 3, 10.0) and not window.goes_on(18.0, 3, 10.0)
    window.on_rolled_out([])
    assert window.goes_on(18.0, 2, 10.0), "one of them was lost"
    assert window.goes_on(18.0, 3, 9.5), "a part is trained on"


def test_why_trainers_left_is_said_once_for_a_number_of_others():
    notes: list[str] = []
    window = LiveWindow(notes.append)
    window.on_rolled_out([2.0])
    for others in (3, 3, 2, 3):
        window.goes_on(6.0, others, 10.0)
    assert [note.split("early: the ")[1].split(" ")[0] for note in notes] == ["3", "2", "3"]
    assert "need 4.0 s for the rest" in notes[0] and "training takes 10.0 s" in notes[0]
