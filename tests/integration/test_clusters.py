"""A run on Ray and one on local processes end with the same bits, through the loss of a worker too."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.learning.weights import weights_digest
from gpu_runtime.runtime import Runtime
from storage.config.loading import load_config
from tests.live_workers import kill_at_first_chunk

SETTINGS = [
    "sampling.batch_size=4", "runtime.spot_workers=2", "runtime.scorer_workers=1", "runtime.commit_steps=1",
    "runtime.start_timeout_s=900", "exploration.strategy=fresh",
    "exploration.candidates=6", "exploration.drafts=12",
]  # fmt: skip


def two_iterations(cluster_name: str, monkeypatch: pytest.MonkeyPatch):
    """Digest of the weights, held-out images, scores, seeds, and whom the run has lost."""
    config = load_config("smoke", [*SETTINGS, f"runtime.cluster={cluster_name}"], {})
    scores, seeds = [], []
    with open_cluster(config) as cluster, Runtime(config, cluster) as runtime:
        for number in (1, 2):
            plan = runtime.explore(number, runtime.ahead(number))
            seeds.append(plan.seeds)
            with monkeypatch.context() as patched:
                if number == 2:
                    kill_at_first_chunk(patched, "spot-0")
                rolled = runtime.rollout(plan)
            scores.append(runtime.reward(rolled))
            runtime.train(rolled, scores[-1])
        images = np.stack([sample.image_HWC for sample in runtime.evaluate(runtime.evaluate_prompts).samples])
        digest = weights_digest(load(runtime.blobs()["weights.safetensors"]))
        return digest, images.tobytes(), scores, seeds, runtime.lost_workers


@pytest.mark.timeout(900)
def test_both_clusters_compute_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    local = two_iterations("local", monkeypatch)
    assert local[-1] == ["spot-0"]
    assert two_iterations("ray", monkeypatch) == local
