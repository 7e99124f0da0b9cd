"""Samples that several live workers share, on local processes and the embedded model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.groups.grouped_fleet import GroupedFleet
from gpu_runtime.runtime import Rollout, Runtime
from gpu_runtime.scheduling.history import check_history
from gpu_runtime.worker.history import names_of, read_history
from storage.config.loading import load_config
from tests.live_workers import kill_at_first_chunk
from tests.shared_samples import NEAR, degrees_of

pytestmark = pytest.mark.slow

SETTINGS = [
    # Twelve batches: of fewer a pair that forms late on a busy machine may get none.
    "algorithm.prompts_per_iteration=12", "sampling.batch_size=4",
    "runtime.spot_workers=3", "runtime.scorer_workers=1", "runtime.history=true",
    "runtime.start_timeout_s=900", "runtime.commit_steps=1",
    "sequence_parallel.rollout=2", "runtime.cluster=local",
]  # fmt: skip


def apart(one: Rollout, other: Rollout) -> list[float]:
    """The largest difference of each sample's latents."""
    pairs = zip(one.delivered, other.delivered, strict=True)
    return [float(np.abs(a.sample.latents_SC - b.sample.latents_SC).max()) for a, b in pairs]


def test_pairs_give_the_same_bits_and_a_member_killed_in_mid_lease_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What a worker alone makes of them is compared in `test_drafted_iterations.py`."""
    config = load_config("smoke", SETTINGS, {})
    with open_cluster(config) as cluster, Runtime(config, cluster, tmp_path) as runtime:
        plan = runtime.explore(1)
        undisturbed = runtime.rollout(plan)
        assert {len(one.worker.split("+")) for one in undisturbed.delivered} == {2}
        done = runtime.collect()
        assert {group.members for group in done.groups} == {("reserved-0", "spot-0"), ("spot-1", "spot-2")}
        assert "regroup" in {interval.state for interval in done.intervals}
        again = runtime.rollout(plan)
        assert max(apart(undisturbed, again)) == 0.0, "the same bits at the same degree in any group"
        expected = degrees_of(read_history(tmp_path))
        kill_at_first_chunk(monkeypatch, "spot-2", GroupedFleet)
        disturbed = runtime.rollout(plan)
        assert runtime.lost_workers == ["spot-2"]
        assert check_history(read_history(tmp_path)).broken() == []
        degrees = degrees_of(read_history(tmp_path))
        names = names_of(one.sample.request for one in disturbed.delivered)
        for name, distance in zip(names, apart(undisturbed, disturbed), strict=True):
            assert distance <= (0.0 if degrees[name] == expected[name] else NEAR), (name, degrees[name])
        trained = runtime.train(disturbed, runtime.reward(disturbed))
        assert trained.report.ratio_deviation <= config.algorithm.ratio_tolerance
