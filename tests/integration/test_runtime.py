"""The door to the devices, on local processes and the embedded model."""

from __future__ import annotations

import itertools
import os
import signal
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import psutil
import pytest
from safetensors.numpy import load

from benchmarks.cost.bare_loop import run
from gpu_runtime.cluster.local_cluster import LocalActor
from gpu_runtime.diffusion.samples import SampleState
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.exploration.plan import plain_plan, rollout_requests
from gpu_runtime.fleet import scoring_pool
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.learning.weights import weights_digest
from gpu_runtime.scheduling.capacity_decision import LiveWindow
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.errors import ConfigurationError, RewardError, RuntimeFailure, TrainingError
from storage.prompts.files import PromptRecord, load_run_prompts
from tests.live_workers import at_first_chunk, kill_at_first_chunk, same_bits, worker_process

SETTINGS = [
    "sampling.batch_size=4", "runtime.spot_workers=2", "runtime.commit_steps=1",
    "runtime.cluster=local",
]  # fmt: skip


def test_samples_equal_those_of_one_process_to_the_bit(fresh, config):
    runtime, worker = fresh, DeviceWorker(config, trains=False)
    worker.use_training_weights(WeightsVersion(0))
    prompts = {prompt.prompt_id: prompt for prompt in load_run_prompts(config)[0]}
    plan = runtime.explore(1)
    rolled = runtime.rollout(plan)
    alone = worker.generate(rollout_requests(plan, prompts, runtime.config.seed, 0))
    assert [d.sample.request for d in rolled.delivered] == [s.request for s in alone]
    for delivered, sample in zip(rolled.delivered, alone, strict=True):
        assert np.array_equal(delivered.sample.image_HWC, sample.image_HWC)
        assert np.array_equal(delivered.sample.trajectory.after_WSC, sample.trajectory.after_WSC)
    assert len({delivered.worker for delivered in rolled.delivered}) > 1


def steps_gone_on_from(monkeypatch) -> list[int]:
    """Committed steps of the samples that workers go on with from now on."""
    call, steps = LocalActor.call, []

    def note(actor, method, *args):
        if method.__name__ == "begin_samples":
            steps.extend(item.step for item in args[2] if isinstance(item, SampleState))
        return call(actor, method, *args)

    monkeypatch.setattr(LocalActor, "call", note)
    return steps


def test_a_killed_spot_worker_s_samples_go_on_and_no_bit_of_the_weights_changes(
    fresh, untrained, monkeypatch
):
    runtime, plan = fresh, fresh.explore(1)
    undisturbed = runtime.rollout(plan)
    scores = runtime.reward(undisturbed)
    runtime.train(undisturbed, scores)
    expected = runtime.blobs()
    runtime.restore(untrained, 0)
    returned, redone = runtime.counters.returned, runtime.counters.redone_steps
    runtime.collect()
    with monkeypatch.context() as patched:
        kill_at_first_chunk(patched, "spot-0")
        steps = steps_gone_on_from(patched)
        disturbed = runtime.rollout(plan)
    assert same_bits(undisturbed, disturbed)
    assert len(steps) == 4 and set(steps) <= {1, 2}
    assert runtime.counters.returned == returned + 4
    assert runtime.counters.redone_steps == redone + 4
    assert runtime.reward(disturbed) == scores
    runtime.train(disturbed, scores)
    assert runtime.blobs() == expected
    runtime.restore(untrained, 0)
    assert runtime.lost_workers == ["spot-0"]
    deadline = time.monotonic() + 240
    names: set[str] = set()
    while "spot-0.1" not in names:
        assert time.monotonic() < deadline
        again = runtime.rollout(plan)
        names = {delivered.worker for delivered in again.delivered}
        assert same_bits(undisturbed, again)
    done = runtime.collect()
    lost, joined = done.device_events
    assert (lost.worker, lost.market, lost.kind) == ("spot-0", "spot", "lost")
    assert "spot-0" in lost.detail
    assert (joined.worker, joined.market, joined.kind) == ("spot-0.1", "spot", "joined")
    assert joined.at > lost.at
    assert max(i.ended_at for i in done.intervals if i.worker == "spot-0") == lost.at
    assert min(i.started_at for i in done.intervals if i.worker == "spot-0.1") == joined.at
    assert runtime.collect().device_events == []


def test_a_spot_worker_that_hangs_is_given_up_and_its_samples_go_on(fresh, monkeypatch):
    runtime, plan = fresh, fresh.explore(1)
    undisturbed = runtime.rollout(plan)
    name = [device.name for device in runtime._fleet.workers(WeightsVersion(0)) if device.market == "spot"][
        -1
    ]
    config = runtime.config.changed(runtime={"lease_s": 15.0})
    monkeypatch.setattr(runtime._fleet, "_dispatcher", Dispatcher(config.runtime, config.sampling.batch_size))
    stopped = worker_process(name)
    at_first_chunk(monkeypatch, name, stopped.suspend)
    steps = steps_gone_on_from(monkeypatch)
    try:
        assert same_bits(undisturbed, runtime.rollout(plan))
    finally:
        with suppress(psutil.NoSuchProcess):
            stopped.kill()
    assert runtime.lost_workers[-1] == name
    assert len(steps) == 4 and set(steps) <= {1, 2}
    lost = [event.detail for event in runtime.collect().device_events if event.kind == "lost"]
    assert "hung and was killed" in lost[-1]


def test_a_killed_scorer_is_replaced_and_the_scores_are_the_same(runtime):
    plan = plain_plan([0, 1, 2, 3], 32, 1)
    scores = runtime.reward(runtime.rollout(plan))
    os.kill(worker_process("scorer-0").pid, signal.SIGKILL)
    assert runtime.reward(runtime.rollout(plan)) == scores
    assert worker_process("scorer-2").is_running()


def test_a_scorer_that_hangs_is_given_up_and_the_scores_are_the_same(runtime, monkeypatch):
    plan = plain_plan([0, 1, 2, 3], 32, 1)
    scores = runtime.reward(runtime.rollout(plan))
    monkeypatch.setattr(scoring_pool, "CALL_LIMIT_S", 20.0)
    hung = runtime._scoring.actors[0].name
    process = worker_process(hung)
    process.suspend()
    assert runtime.reward(runtime.rollout(plan)) == scores
    assert not process.is_running()
    assert hung not in [actor.name for actor in runtime._scoring.actors]


def test_evaluations_between_leave_training_as_the_bare_loop_has_it(fresh, config):
    expected = run(config, 2)
    for iteration in (1, 2):
        fresh.evaluate(fresh.compared_prompts)
        rolled = fresh.rollout(fresh.explore(iteration))
        trained = fresh.train(rolled, fresh.reward(rolled))
        assert trained.report.training_steps > 0
        assert trained.report.ratio_deviation <= config.algorithm.ratio_tolerance
        fresh.evaluate(fresh.compared_prompts)
    assert weights_digest(load(fresh.blobs()["weights.safetensors"])) == expected.digest


def test_a_sync_that_changes_nothing_is_an_error(fresh, monkeypatch):
    rolled = fresh.rollout(fresh.explore(1))
    idle = TrainingReport(1, 0.0, 0.0, 0.0, 0.0, 0.0)
    monkeypatch.setattr(fresh._feed, "finish", lambda samples: idle)
    with pytest.raises(TrainingError, match="changes nothing"):
        fresh.train(rolled, fresh.reward(rolled))


def noted_order(runtime, monkeypatch) -> list[str]:
    """What is waited for and given to the trainer, in the order in which it happens."""
    order: list[str] = []
    wait_for, call = runtime._scoring.wait_for, LocalActor.call

    def wait(scores):
        order.append(f"{len(scores)} scores")
        return wait_for(scores)

    def note(actor, method, *args):
        if method.__name__ in ("add_to_training", "train"):
            order.append(f"{method.__name__} {len(args[0])}")
        return call(actor, method, *args)

    monkeypatch.setattr(runtime._scoring, "wait_for", wait)
    monkeypatch.setattr(LocalActor, "call", note)
    return order


def test_the_trainer_has_judged_groups_before_the_last_are_judged(fresh, untrained, monkeypatch):
    size = fresh.config.algorithm.group_size
    with monkeypatch.context() as patched:
        order = noted_order(fresh, patched)
        rolled = fresh.rollout(fresh.explore(1))
        scores = fresh.reward(rolled)
        trained = fresh.train(rolled, scores)
    kept = trained.advantages.kept_P.tolist()
    assert any(kept)
    groups, added = f"{size} scores", f"add_to_training {size}"
    assert [what for what in order if what != groups] == [added] * sum(kept) + ["train 0"]
    assert order.index(added) < len(order) - order[::-1].index(groups) - 1, "before the last scores"
    assert trained.beside_s > 0
    blobs = fresh.blobs()
    fresh.restore(untrained, 0)
    at_once = fresh.rollout(fresh.explore(1))
    fresh._feed.abandon()
    with monkeypatch.context() as patched:
        order = noted_order(fresh, patched)
        again = fresh.train(at_once, scores)
    assert order == [f"train {sum(kept) * size}"]
    assert (again.report, again.beside_s) == (trained.report, 0)
    assert fresh.blobs() == blobs


def test_trainers_that_leave_a_rollout_train_meanwhile_and_change_no_bit(fresh, untrained, monkeypatch):
    rolled = fresh.rollout(fresh.explore(1))
    fresh.train(rolled, fresh.reward(rolled))
    expected = fresh.blobs()
    fresh.restore(untrained, 0)
    with monkeypatch.context() as patched:
        leaves = load_config("smoke", [*SETTINGS, "runtime.trainers_leave=true"], {})
        patched.setattr(fresh._fleet, "_config", leaves)
        asked: list[tuple[float, int]] = []

        def goes_on(window, batches, others, train_s):
            assert train_s is None or train_s > 0
            asked.append((batches, others))
            return others == 0

        patched.setattr(LiveWindow, "goes_on", goes_on)
        rolled = fresh.rollout(fresh.explore(1))
        trained = fresh.train(rolled, fresh.reward(rolled))
    assert {delivered.worker.partition("-")[0] for delivered in rolled.delivered} == {"spot"}
    assert max(batches for batches, _ in asked) == len(rolled.delivered) / 4
    assert trained.beside_s > 0
    assert fresh.blobs() == expected


def test_groups_that_were_given_and_are_not_trained_on_leave_nothing(fresh, untrained):
    rolled = fresh.rollout(fresh.explore(1))
    scores = fresh.reward(rolled)
    flat = [replace(score, value=0.5, exact=False) for score in scores]
    trained = fresh.train(rolled, flat)
    assert (trained.report.training_steps, trained.policy_version) == (0, 0)
    assert trained.advantages.dropped == len(rolled.plan.seeds)
    assert fresh.blobs() == untrained
    fresh.reward(rolled)
    fresh.reward(fresh.rollout(fresh.explore(1)))
    expected = run(fresh.config, 1)
    fresh.train(rolled, scores)
    assert weights_digest(load(fresh.blobs()["weights.safetensors"])) == expected.digest


def test_a_scorer_that_fails_on_everything_stops_the_run(fresh, monkeypatch):
    unquoted = {i: PromptRecord(i, "a red sign") for i in fresh._train_by_id}
    judge = fresh._scoring.judge
    monkeypatch.setattr(fresh._scoring, "judge", lambda images, prompts: judge(images, unquoted))
    rolled = fresh.rollout(fresh.explore(1))
    with pytest.raises(RewardError, match="failed on all"):
        fresh.reward(rolled)


def test_intervals_of_every_device_are_contiguous(runtime):
    runtime.collect()
    looks = []
    runtime.on_look(lambda: looks.append(runtime.so_far()))
    runtime.rollout(runtime.explore(2))
    so_far = runtime.so_far()
    collected = runtime.collect()
    runtime.on_look(lambda: None)
    intervals = collected.intervals
    assert looks
    until = max(interval.ended_at for interval in so_far.intervals)
    assert sum(min(i.ended_at, until) - i.started_at for i in intervals if i.started_at < until) == (
        pytest.approx(sum(i.ended_at - i.started_at for i in so_far.intervals))
    )
    assert sum(paid.paid_s for paid in so_far.paid_time) == (
        pytest.approx(sum(i.ended_at - i.started_at for i in so_far.intervals), abs=0.01)
    )
    by_worker = {}
    for interval in intervals:
        by_worker.setdefault(interval.worker, []).append(interval)
    assert {"reserved-0", "spot-1"} <= by_worker.keys()
    for own in by_worker.values():
        assert all(a.ended_at == b.started_at for a, b in itertools.pairwise(own))
        assert "rollout" in {interval.state for interval in own}


def test_too_few_prompts_are_refused_before_anything_starts(tmp_path, config):
    prompts = tmp_path / "few.txt"
    prompts.write_text('a red sign that says "ABC"\n')
    few = config.changed(prompts={"train": str(prompts)})
    with pytest.raises(ConfigurationError, match="file of 1 prompts, fewer than"):
        load_run_prompts(few)


def test_the_trainers_death_stops_the_run_with_what_to_do(runtime):
    """Last in this file: the runtime is of no use afterwards."""
    os.kill(worker_process("reserved-0").pid, signal.SIGKILL)
    with pytest.raises(RuntimeFailure, match="nothing committed is lost"):
        runtime.rollout(runtime.explore(3))
