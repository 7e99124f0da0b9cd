"""What the benchmark of several hosts counts, from histories made by hand."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.fleet.hosts import Disturbance, Fault, FaultKind, Outcome, Trial, figures
from benchmarks.fleet.ray_hosts import RayHosts
from gpu_runtime.scheduling.history import HistoryLine
from gpu_runtime.scheduling.requests import RequestKind


class FakeHosts:
    """Spot hosts that note what is done to them."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.spots = {
            "spot3": SimpleNamespace(
                disconnect=lambda: self.done.append("disconnect"), connect=lambda: self.done.append("connect")
            )
        }

    def power_off(self, name: str) -> None:
        self.done.append("power off")
        del self.spots[name]


def line(event: str, at: float = 0.0, **facts: Any) -> HistoryLine:
    return HistoryLine(1, "driver", at, event, facts)


def disturbed(kind: FaultKind, cut_s: float = 0.0) -> tuple[Disturbance, FakeHosts]:
    """A fault of `spot3` when it was given samples; its next samples are in the same lines."""
    hosts = FakeHosts()
    disturbance = Disturbance(cast(RayHosts, hosts), Trial("one", (Fault(kind, 1),)), cut_s)
    disturbance.read([
        line("joined", worker="w", host="spot3"), line("phase", iteration=1),
        line("generate", kind=RequestKind.ROLLOUT), line("lease", worker="w"), line("lease", worker="w"),
    ])  # fmt: skip
    return disturbance, hosts


def outcome(disturbance: Disturbance, state: dict[str, bytes]) -> Outcome:
    return Outcome(disturbance, state, lost=0, twice=0, hung=False, hosts=4, wall_s=1.0)


def test_a_host_without_power_is_noticed_and_never_back():
    disturbance, hosts = disturbed("power_off")
    assert hosts.done == ["power off"]
    began = disturbance.losses["spot3"].at
    assert began == pytest.approx(time.time(), abs=30.0)
    disturbance.read([line("lost", began + 2.5, worker="w")])
    found = figures([outcome(disturbance, {"weights": b"1"})], {"weights": b"1"}, 4.0)
    assert (found["hosts_lost"], found["noticed"], found["back"]) == (1, 1, 0)
    assert found["noticed_p95_s"] == pytest.approx(2.5)
    assert (found["trials"], found["identical"], found["faults_left"]) == (1, 1, 0)


def test_a_host_that_was_cut_off_is_back_with_its_first_samples_after_that():
    disturbance, hosts = disturbed("cut")
    assert hosts.done == ["disconnect", "connect"] and not disturbance.losses["spot3"].back
    disturbance.read([line("lease", worker="w")])
    assert disturbance.losses["spot3"].back


def test_a_loss_that_nobody_noticed_has_no_percentile():
    noticed, _ = disturbed("power_off")
    noticed.read([line("lost", noticed.losses["spot3"].at + 1.0, worker="w")])
    unnoticed, _ = disturbed("power_off")
    found = figures([outcome(noticed, {}), outcome(unnoticed, {})], {"weights": b"1"}, 4.0)
    assert (found["hosts_lost"], found["noticed"], found["identical"]) == (2, 1, 0)
    assert found["noticed_p95_s"] is None
