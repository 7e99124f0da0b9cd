"""Samples that several live workers share, on local processes and the embedded model."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.exploration.plan import rollout_requests
from gpu_runtime.groups.grouped_fleet import GroupedFleet
from gpu_runtime.runtime import Rollout, Runtime
from gpu_runtime.scheduling.history import check_history
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.history import names_of, read_history
from gpu_runtime.worker.worker import DeviceWorker
from storage.prompts.of_a_run import load_run_prompts
from tests.live_workers import worker_process
from tests.shared_samples import NEAR, degrees_of

pytestmark = pytest.mark.slow

SETTINGS = [
    # Twelve batches: of fewer a pair that forms late on a busy machine may get none.
    "algorithm.prompts_per_iteration=12", "sampling.batch_size=4",
    "runtime.spot_workers=3", "runtime.scorer_workers=1", "runtime.history=true",
    "runtime.start_timeout_s=900", "runtime.commit_steps=1",
    "sequence_parallel.rollout=2", "runtime.cluster=local",
]  # fmt: skip


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory):
    return tmp_path_factory.mktemp("history")


@pytest.fixture(scope="module")
def runtime(config, history):
    with open_cluster(config) as cluster, Runtime(config, cluster, history) as runtime:
        yield runtime


def apart(one: Rollout, other: Rollout) -> list[float]:
    """The largest difference of each sample's latents."""
    pairs = zip(one.delivered, other.delivered, strict=True)
    return [float(np.abs(a.sample.latents_SC - b.sample.latents_SC).max()) for a, b in pairs]


def test_pairs_generate_what_one_process_does_within_rounding_and_the_trainer_accepts_it(fresh):
    runtime = fresh
    plan = runtime.explore(1)
    rolled, again = runtime.rollout(plan), runtime.rollout(plan)
    assert max(apart(rolled, again)) == 0.0, "the same bits at the same degree in any group"
    assert {len(one.worker.split("+")) for one in rolled.delivered} == {2}
    worker = DeviceWorker(runtime.config, trains=False)
    worker.use_training_weights(WeightsVersion(0))
    prompts = {prompt.prompt_id: prompt for prompt in load_run_prompts(runtime.config)[0]}
    alone = worker.generate(rollout_requests(plan, prompts, runtime.config.seed, 0))
    for delivered, sample in zip(rolled.delivered, alone, strict=True):
        assert delivered.sample.request == sample.request
        assert np.abs(delivered.sample.latents_SC - sample.latents_SC).max() <= NEAR
        np.testing.assert_allclose(
            delivered.sample.trajectory.log_prob_W, sample.trajectory.log_prob_W, atol=NEAR
        )
    done = runtime.collect()
    assert {group.members for group in done.groups} == {
        ("reserved-0", "spot-0"), ("spot-1", "spot-2"),
    }  # fmt: skip
    assert "regroup" in {interval.state for interval in done.intervals}
    trained = runtime.train(rolled, runtime.reward(rolled))
    assert trained.report.ratio_deviation <= runtime.config.algorithm.ratio_tolerance


def strike_at_first_commit(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Kill a worker when the first chunk of its group has come in."""
    on_chunk = GroupedFleet.on_notice
    victim = worker_process(name)
    struck: list[int] = []

    def strike_on_chunk(groups, device, notice):
        if not struck and name in device.name.split("+"):
            struck.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)
        on_chunk(groups, device, notice)

    monkeypatch.setattr(GroupedFleet, "on_notice", strike_on_chunk)


@pytest.mark.parametrize("victim", ["spot-0", "spot-2"])
def test_a_member_killed_in_mid_lease_loses_nothing_and_its_company_goes_on(
    fresh, history, monkeypatch: pytest.MonkeyPatch, victim: str
):
    runtime, plan = fresh, fresh.explore(1)
    # All four are there: a replacement of an earlier victim too.
    slots: set[str] = set()
    undisturbed = runtime.rollout(plan)
    deadline = time.monotonic() + 240
    while len(slots) < 4:
        assert time.monotonic() < deadline
        undisturbed = runtime.rollout(plan)
        slots = {name.split(".")[0] for one in undisturbed.delivered for name in one.worker.split("+")}
    expected = degrees_of(read_history(history))
    here = next(
        name
        for one in undisturbed.delivered
        for name in one.worker.split("+")
        if name.split(".")[0] == victim
    )
    with monkeypatch.context() as patched:
        strike_at_first_commit(patched, here)
        disturbed = runtime.rollout(plan)
    assert runtime.lost_workers[-1] == here
    report = check_history(read_history(history))
    assert report.broken() == []
    degrees = degrees_of(read_history(history))
    names = names_of(one.sample.request for one in disturbed.delivered)
    for name, distance in zip(names, apart(undisturbed, disturbed), strict=True):
        assert distance <= (0.0 if degrees[name] == expected[name] else NEAR), (name, degrees[name])
