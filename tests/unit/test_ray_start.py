"""Ray that does not start ends a run with one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import gpu_runtime.cluster.ray as of_ray
from gpu_runtime.cluster.address import refuse_unusable_folder
from gpu_runtime.cluster.ray import ray_cluster
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, RuntimeFailure
from tasks.checks.quick_checks import check_inputs


def test_ray_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch):
    def busy(**_: object) -> None:
        raise Exception("The current node timed out during startup.\nmore")

    monkeypatch.setattr(ray_cluster.ray, "init", busy)
    with pytest.raises(RuntimeFailure, match=r"^Ray did not start.*timed out during startup; free[^\n]*$"):
        ray_cluster.RayCluster(RunConfig())


def test_what_has_no_place_for_ray_s_sockets_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", f"/tmp/{'x' * 60}")
    with pytest.raises(ConfigurationError, match="at most 107; set RAY_TMPDIR to a short folder"):
        check_inputs(RunConfig.model_validate({"runtime": {"cluster": "ray"}}))
    monkeypatch.setenv("RAY_TMPDIR", "/proc/1")
    with pytest.raises(ConfigurationError, match="/proc/1 cannot be written to; set RAY_TMPDIR"):
        refuse_unusable_folder()
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    refuse_unusable_folder()


@pytest.mark.parametrize("token", ["made", "kept"])
def test_ray_has_a_token_where_the_home_directory_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
):
    place = tmp_path if token == "kept" else tmp_path / "file"
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(of_ray, "RAY_TOKEN", place / ".ray" / "auth_token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    of_ray.provide_token()
    assert (os.environ.pop("RAY_AUTH_TOKEN", None) is not None) == (token == "made")
