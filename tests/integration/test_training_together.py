"""Several live devices that divide each training step, on local processes and the embedded model."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from safetensors.numpy import load

from gpu_runtime.exploration.plan import rollout_requests
from gpu_runtime.learning.advantages import training_samples
from gpu_runtime.runtime import Rollout, Runtime
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.worker import DeviceWorker
from storage.errors import RuntimeFailure
from storage.prompts.files import load_run_prompts
from tests.live_workers import worker_process

pytestmark = pytest.mark.slow

SETTINGS = [
    "sampling.batch_size=4", "runtime.reserved_workers=2", "runtime.trainer_workers=2",
    "runtime.spot_workers=1", "runtime.scorer_workers=1", "runtime.start_timeout_s=900",
    "runtime.commit_steps=1", "runtime.cluster=local", "exploration.strategy=plain",
]  # fmt: skip
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def alone(config):
    """A trainer of its own, in this process."""
    worker = DeviceWorker(config, trains=True)
    worker.use_training_weights(WeightsVersion(0))
    return worker


def iteration(runtime: Runtime, number: int):
    """A rollout, its scores and what came of its training."""
    rolled = runtime.rollout(runtime.explore(number))
    scores = runtime.reward(rolled)
    return rolled, scores, runtime.train(rolled, scores)


def train_alone(worker: DeviceWorker, config, rolled: Rollout, scores):
    """The same training step by one trainer; its report."""
    generated = [delivered.sample for delivered in rolled.delivered]
    return worker.train(training_samples(generated, scores, config.algorithm, config.reward.signal)[1])


def off(ours: dict[str, bytes], theirs: dict[str, bytes], before: dict[str, bytes], part: str) -> float:
    """How far two states are apart, as a share of how far training moved them."""
    one, other, start = (load(blobs[part]) for blobs in (ours, theirs, before))
    assert one.keys() == other.keys()
    assert {name: value.shape for name, value in one.items()} == {n: v.shape for n, v in other.items()}
    apart = sum(float(((one[name] - other[name]) ** 2).sum()) for name in one)
    moved = sum(float(((one[name] - start[name]) ** 2).sum()) for name in one if name in start)
    return float(np.sqrt(apart / moved))


def test_an_iteration_by_two_equals_one_by_a_single_trainer_within_rounding(fresh, untrained, alone, config):
    alone.restore(untrained)
    alone.use_training_weights(WeightsVersion(0))
    assert alone.blobs() == untrained
    rolled, scores, trained = iteration(fresh, 1)
    states = fresh.collect().intervals
    prompts = {prompt.prompt_id: prompt for prompt in load_run_prompts(config)[0]}
    for delivered, sample in zip(
        rolled.delivered, alone.generate(rollout_requests(rolled.plan, prompts, config.seed, 0)), strict=True
    ):
        assert np.array_equal(delivered.sample.image_HWC, sample.image_HWC), "to the bit, on any device"
        assert np.array_equal(delivered.sample.trajectory.log_prob_W, sample.trajectory.log_prob_W)
    report = train_alone(alone, config, rolled, scores)
    assert trained.report.training_steps == report.training_steps == 1
    assert trained.report.ratio_deviation <= config.algorithm.ratio_tolerance
    for field in ("loss", "gradient_norm", "clip_share"):
        assert abs(getattr(trained.report, field) - getattr(report, field)) <= TOLERANCE, field
    expected, found = alone.blobs(), fresh.blobs()
    assert off(expected, found, untrained, "weights.safetensors") <= 1e-4
    largest = max(
        float(np.abs(ours - load(found["weights.safetensors"])[name]).max())
        for name, ours in load(expected["weights.safetensors"]).items()
    )
    assert largest <= TOLERANCE
    training = {state.worker for state in states if state.state == "train"}
    assert training == {"reserved-0", "reserved-1"}


def test_every_device_generates_and_evaluating_between_leaves_training_as_it_was(fresh, untrained):
    rolled, _, _ = iteration(fresh, 1)
    assert {delivered.worker for delivered in rolled.delivered} <= {"reserved-0", "reserved-1", "spot-0"}
    second = iteration(fresh, 2)
    expected = fresh.blobs()
    fresh.restore(untrained, 0)
    fresh.evaluate(fresh.compared_prompts)
    iteration(fresh, 1)
    before, again = fresh.evaluate(fresh.compared_prompts), fresh.evaluate(fresh.compared_prompts)
    assert before.scores == again.scores
    repeated = iteration(fresh, 2)
    fresh.evaluate(fresh.compared_prompts)
    assert repeated[1] == second[1]
    assert fresh.blobs() == expected, "two trainers repeat what two trainers did, to the bit"


def test_a_checkpoint_of_two_goes_on_with_one_and_the_other_way_round(fresh, untrained, alone, config):
    iteration(fresh, 1)
    of_two = fresh.blobs()
    alone.restore(of_two)
    alone.use_training_weights(WeightsVersion(1))
    assert alone.blobs() == of_two
    rolled, scores, trained = iteration(fresh, 2)
    report = train_alone(alone, config, rolled, scores)
    assert report.gradient_norm == pytest.approx(trained.report.gradient_norm, rel=TOLERANCE)
    of_one, both = alone.blobs(), fresh.blobs()
    assert off(of_one, both, of_two, "weights.safetensors") <= 1e-4

    fresh.restore(of_one, 2)
    assert fresh.blobs() == of_one
    rolled, scores, trained = iteration(fresh, 3)
    report = train_alone(alone, config, rolled, scores)
    assert report.gradient_norm == pytest.approx(trained.report.gradient_norm, rel=TOLERANCE)
    assert off(alone.blobs(), fresh.blobs(), of_one, "weights.safetensors") <= 1e-4


def test_one_killed_while_the_other_waits_for_it_ends_the_training_and_is_named(fresh):
    """Last in this file: the runtime is of no use afterwards. What to do is said by `RunGuard.following`."""
    rolled = fresh.rollout(fresh.explore(1))
    scores = fresh.reward(rolled)
    waits, stopped = worker_process("reserved-0"), worker_process("reserved-1")
    os.kill(stopped.pid, signal.SIGSTOP)  # so that the other one waits in an exchange
    failures: list[BaseException] = []

    def train() -> None:
        try:
            fresh.train(rolled, scores)
        except RuntimeFailure as error:
            failures.append(error)

    training = threading.Thread(target=train)
    training.start()
    training.join(5)
    waited = training.is_alive()
    os.kill(stopped.pid, signal.SIGKILL)
    assert waited, "no device can train without the one that is stopped"
    training.join(250)
    assert not training.is_alive()
    (failure,) = failures
    assert "worker 'reserved-1' is gone" in str(failure) and "nothing committed is lost" in str(failure)
    waits.wait(60)
