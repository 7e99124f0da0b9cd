"""What is asked of a recorded run for a profile, from a ledger made by hand."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.home import Home
from storage.record.queries.devices import (
    changes_of_state,
    evaluation_work,
    losses_at_work,
    opening_s,
    start_times,
)
from storage.record.reading import RecordConnection
from storage.record.records import (
    DeviceEvent,
    DeviceState,
    GroupRecord,
    IterationRecord,
    StateInterval,
    StepTimeRecord,
)
from storage.record.run_store import RunStore
from tasks.inputs import plugin_facts
from tasks.recorded_profile import quantity_of, recorded_profile
from tests.sample_run import _DEVICES, evaluation_record, iteration_record

RUN = "by-hand"


def states(worker: str, began: float, *ends: tuple[DeviceState, float]) -> list[StateInterval]:
    """What a device did one after another, each to a moment."""
    found: list[StateInterval] = []
    for state, ended in ends:
        market = "reserved" if worker.startswith("reserved") else "spot"
        found.append(StateInterval(worker, market, state, began, ended, 1.0))
        began = ended
    return found


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[RecordConnection]:
    """Two devices begin; in the second iteration one of them is lost at work, and one that came is, idle."""
    store, config = RunStore(Home(tmp_path).ensure()), RunConfig()
    store.create_run(RUN, config, plugin_facts(config), os.getpid())
    began = [
        *states("reserved-0", 100, ("load", 110), ("idle", 113), ("rollout", 121)),
        *states("spot-0", 101, ("load", 109), ("idle", 113), ("rollout", 119), ("idle", 121)),
    ]
    first = [
        *states("reserved-0", 121, ("load", 122), ("rollout", 130), ("train", 140)),
        *states("spot-0", 121, ("load", 122), ("rollout", 130), ("idle", 140)),
    ]
    second = [
        *states("reserved-0", 140, ("load", 142), ("rollout", 170)),
        *states("spot-0", 140, ("load", 143), ("rollout", 160)),
        *states("spot-1", 140, ("load", 151), ("load", 155), ("rollout", 158), ("idle", 165)),
    ]
    events = [DeviceEvent("spot-0", "spot", "lost", 160), DeviceEvent("spot-1", "spot", "lost", 165)]
    evaluation = evaluation_record(RUN, 0, 100, images=8, gallery=0)
    store.commit_evaluation(replace(evaluation, intervals=began, paid_time=[]))
    for iteration, intervals, happened in ((1, first, []), (2, second, events)):
        record = iteration_record(RUN, iteration, 100 + 20 * iteration, samples=16)
        store.commit_iteration(replace(record, intervals=intervals, device_events=happened, paid_time=[]))
    with store.reading() as connection:
        yield connection


def test_what_a_ledger_made_by_hand_says(ledger: RecordConnection):
    # A start is the first load of a device; the opening goes from the first to the first phase.
    assert (start_times(ledger, RUN), opening_s(ledger, RUN)) == ([10.0, 8.0, 11.0], 4.0)
    assert (start_times(ledger, "another"), opening_s(ledger, "another")) == ([], None)
    found = changes_of_state(ledger, RUN)
    assert list(found["state"]) == ["load"] * 3, "those after the start and the first iteration"
    assert list(found["lasted_s"]) == [2.0, 3.0, 4.0]
    assert losses_at_work(ledger, RUN) == [160.0], "an idle device's is discovered otherwise"
    (row,) = evaluation_work(ledger, RUN).to_dict("records")
    assert (row["iteration"], row["images"], row["rollout_device_s"]) == (0, 8, 14.0)


BEGAN = 1_000_000.0
NAMES = [name for name, *_ in _DEVICES]
BATCHES, STEPS = 16, 10


def recorded(
    tmp_path: Path,
    rollout: Any,
    sizes: tuple[int, ...],
    step_s: dict[int, float] | None = None,
    iterations: Sequence[int] = range(1, 5),
    changed: Callable[[IterationRecord], IterationRecord] = lambda record: record,
) -> Home:
    """Three devices that roll out for 9 s in each of four iterations, in groups of these sizes."""
    home = Home(tmp_path).ensure()
    store = RunStore(home)
    shared = {"rollout": rollout, "evaluate": 1}
    config = RunConfig.model_validate(
        {"name": "glyphs", "sequence_parallel": shared, "runtime": {"spot_workers": 2}}
    )
    store.create_run("shared", config, plugin_facts(config), os.getpid())
    for iteration in iterations:
        began = BEGAN + 100 * iteration
        names, groups = list(NAMES), []
        for place, size in enumerate(sizes):
            members, names = tuple(names[:size]), names[size:]
            groups.append(GroupRecord(iteration, place, "", members, began, began + 18))
        times = [StepTimeRecord("any", d, value, 5) for d, value in (step_s or {}).items()]
        record = iteration_record("shared", iteration, began)
        store.commit_iteration(changed(replace(record, groups=groups, step_times=times)))
    store.commit_evaluation(evaluation_record("shared", 4, BEGAN + 600, images=100))
    store.set_status("shared", "finished")
    return home


def test_a_step_is_the_group_s_time_over_its_batches(tmp_path: Path):
    profile = recorded_profile(recorded(tmp_path, 3, (3,)), "shared")
    assert profile.step_s(16, 3) == pytest.approx(27 / 3 / (BATCHES * STEPS))
    (shared,) = [step for step in profile.steps if step.degree == 3]
    assert (shared.evidence, shared.source) == ("measured", "run shared")
    # Devices evaluated alone: their step stands for degree 1, over which nothing is known of evaluations.
    assert profile.degrees == (1, 3)
    assert profile.evaluation.evidence == "modelled"


def test_measured_times_say_how_degrees_compare(tmp_path: Path):
    # 18 device-seconds of two that share and 9 of one alone. The measured steps are 0.1 and 0.08 s, without
    # decoding: 18 / 2 / 0.8 + 9 device-seconds alone would have done the 160 steps.
    def without_groups(record: IterationRecord) -> IterationRecord:
        return replace(record, groups=[], samples=record.samples[:16]) if record.iteration == 2 else record

    home = recorded(tmp_path, "auto", (2, 1), {1: 0.1, 2: 0.08}, (1, 2), without_groups)
    profile = recorded_profile(home, "shared")
    assert profile.step_s(16, 2) / profile.step_s(16, 1) == pytest.approx(0.8)
    assert profile.step_s(16, 1) == pytest.approx((18 / 2 / 0.8 + 9) / (BATCHES * STEPS))
    assert [(step.degree, step.evidence) for step in profile.steps] == [(1, None), (2, "measured")]
    assert (profile.step.value, profile.decode_s.value) == (1.0, 0.0)
    # The held-out images are seven batches, in 8 s of each device.
    evaluated_s = 3 * 8 / (7 * RunConfig().sampling.evaluate_steps)
    assert profile.evaluation.value == pytest.approx(evaluated_s / profile.step_s(16, 1))


def test_measured_times_count_also_where_all_samples_were_shared_alike(tmp_path: Path):
    profile = recorded_profile(recorded(tmp_path, "auto", (3,), {1: 0.1, 3: 0.05}), "shared")
    assert profile.step_s(16, 3) == pytest.approx(27 / 3 / (BATCHES * STEPS))
    assert profile.step_s(16, 1) == pytest.approx(2 * profile.step_s(16, 3))


@pytest.mark.parametrize("first", [1, 2])
def test_the_parts_of_two_iterations_by_hand_and_the_first_of_three_does_not_count(
    tmp_path: Path, first: int
):
    metrics = {1: {"reward_s": 90.0}, 2: {"reward_s": 3.0, "train_beside_s": 2.5}, 3: {"reward_s": 1.5}}

    def regrouping(record: IterationRecord) -> IterationRecord:
        intervals = [
            replace(one, state="regroup") if (one.worker, one.state) == ("reserved-0", "idle") else one
            for one in record.intervals
        ]
        return replace(record, intervals=intervals, metrics=record.metrics | metrics[record.iteration])

    home = recorded(tmp_path, "auto", (2, 1), {1: 0.1, 2: 0.08}, range(first, 4), regrouping)
    profile = recorded_profile(home, "shared")
    # One pair of devices: 16 turns in the 9 s of a rollout without a load and a regrouping of 1 s each. The
    # two scorers lag from the first turn on.
    assert profile.score_s.value == pytest.approx(2 * (7 * 15 / 16 + (3.0 + 1.5) / 2) / 256)
    # Of 18 s, 9 are the rollout, 7 training (2.5 of them beside the rollout) and the rest the driver's.
    assert profile.driver_s.value == pytest.approx(((18 - 9 - 3.0 - 4.5) + (18 - 9 - 1.5 - 7)) / 2)


def test_rollouts_of_several_degrees_say_nothing_without_measured_times(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="no rollout whose samples were all shared alike"):
        recorded_profile(recorded(tmp_path, 2, (2, 1)), "shared")


def test_a_quantity_s_uncertainty_is_the_deviation_of_its_logarithms_up_to_a_limit():
    apart = quantity_of([1.0, math.e**0.5], "run r")
    assert (apart.value, apart.evidence) == (pytest.approx((1 + math.e**0.5) / 2), "measured")
    assert apart.uncertainty == pytest.approx(0.5 / 2**0.5)
    assert quantity_of([1e-9, 1.0, 1e9], "run r").uncertainty == 2.0
    assert quantity_of([0.0, 1.0, math.e**0.5], "run r").uncertainty == apart.uncertainty
    assert quantity_of([3.0], "run r").uncertainty == 0.0
    nothing = quantity_of([], "run r")
    assert (nothing.value, nothing.evidence) == (0.0, "modelled")
