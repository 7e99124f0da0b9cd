"""A Ray cluster's start: a failure is one line; its GPUs are divided between workers and scorers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def joined(monkeypatch: pytest.MonkeyPatch, resources: dict[str, float]) -> None:
    """A joined cluster with one instance, which has no label yet."""
    node = {"Alive": True, "Labels": {}, "Resources": resources}
    monkeypatch.setattr(ray_cluster.RayCluster, "_connect", lambda cluster: None)
    monkeypatch.setattr(ray_cluster.RayCluster, "shutdown", lambda cluster: None)
    monkeypatch.setattr(ray_cluster, "close_to_others", lambda path: None)
    monkeypatch.setattr(ray_cluster.ray, "cluster_resources", lambda: resources)
    monkeypatch.setattr(ray_cluster.ray, "nodes", lambda: [node])


@pytest.mark.parametrize(
    ("capacity", "reserved", "spot", "refused"),
    [
        ("ray", 16, 500, False),
        ("ray", 17, 1, True),
        ("static", 1, 15, False),
        ("static", 1, 16, True),
        ("trace", 1, 15, False),
        ("trace", 1, 16, True),
    ],
)
def test_far_more_workers_than_a_cluster_starts_are_refused_and_those_it_may_get_later_are_not(
    monkeypatch: pytest.MonkeyPatch, capacity: str, reserved: int, spot: int, refused: bool
):
    joined(monkeypatch, {"CPU": 2.0})
    runtime = {
        "cluster": "host:6379", "capacity": capacity, "reserved_workers": reserved, "spot_workers": spot,
    }  # fmt: skip
    config = RunConfig.model_validate({"runtime": runtime})
    if refused:
        with pytest.raises(ConfigurationError, match="the cluster has 2 CPUs"):
            ray_cluster.RayCluster(config)
    else:
        ray_cluster.RayCluster(config)


@pytest.mark.parametrize(("reserved", "refused"), [(2, False), (3, True)])
def test_spot_devices_that_an_autoscaler_may_add_take_no_gpus_of_trainers(
    monkeypatch: pytest.MonkeyPatch, reserved: int, refused: bool
):
    joined(monkeypatch, {"CPU": 16.0, "GPU": 2.0})
    runtime = {
        "cluster": "host:6379", "capacity": "ray", "spot_workers": 8, "reserved_workers": reserved,
        "trainer_workers": 2,
    }  # fmt: skip
    config = RunConfig.model_validate({"runtime": runtime})
    if refused:
        with pytest.raises(ConfigurationError, match="but 3 workers would share 2 GPUs;"):
            ray_cluster.RayCluster(config)
    else:
        assert ray_cluster.RayCluster(config)._gpu_share == 1


def test_what_has_no_place_for_ray_s_sockets_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", f"/tmp/{'x' * 60}")
    with pytest.raises(ConfigurationError, match="at most 107; set RAY_TMPDIR to a short folder"):
        check_inputs(RunConfig.model_validate({"runtime": {"cluster": "ray"}}))
    monkeypatch.setenv("RAY_TMPDIR", "/proc/1")
    with pytest.raises(ConfigurationError, match="/proc/1 is not writable; set RAY_TMPDIR"):
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


@pytest.mark.parametrize(
    ("workers", "gpus", "scorers", "share"),
    [
        (3, 8, 0, 1.0),  # a GPU each, and some left
        (3, 2, 0, 0.5),  # two on the first, one on the second
        (5, 2, 0, 1 / 3),
        (3, 1, 0, 1 / 3),
        (6, 8, 4 * 0.25, 1.0),  # one GPU for the scorers, seven for six workers
        (6, 8, 4 * 0.75, 0.5),  # three and five
        (1, 2, 0.5, 1.0),
        (3, 1, 2 * 0.1, 0.2666),  # all on one: what the scorers leave, divided
        (3, 1, 1.0, 0.0),  # nothing is left
        (3, 1, 2.0, 0.0),
    ],
)
def test_shares_worked_by_hand(workers: int, gpus: float, scorers: float, share: float):
    assert ray_cluster.worker_share(workers, gpus, scorers) == pytest.approx(share)


@given(st.integers(1, 64), st.integers(1, 16), st.integers(0, 8), st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]))
def test_all_fit_beside_each_other(workers: int, gpus: int, count: int, each: float):
    share = ray_cluster.worker_share(workers, gpus, count * each)
    if share == 0:
        assert count * each >= gpus
    elif gpus - count * each < 1:
        assert workers * share + count * each <= gpus + 1e-9
    else:
        on_one = round(1 / share)
        assert -(-workers // on_one) <= int(gpus - count * each)
