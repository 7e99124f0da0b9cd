"""Ray that does not start ends a run with one line."""

from __future__ import annotations

import pytest

from gpu_runtime.cluster.ray import ray_cluster
from storage.config.run_config import RunConfig
from storage.errors import RuntimeFailure


def test_ray_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch):
    def busy(**_: object) -> None:
        raise Exception("The current node timed out during startup.\nmore")

    monkeypatch.setattr(ray_cluster.ray, "init", busy)
    with pytest.raises(RuntimeFailure, match=r"^Ray did not start.*timed out during startup\. Free[^\n]*$"):
        ray_cluster.RayCluster(RunConfig())
