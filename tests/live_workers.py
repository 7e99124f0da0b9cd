"""Workers that a test has started, on whatever cluster: their processes, and what they have rolled out."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import psutil
import pytest

from gpu_runtime.dispatch.devices import Device
from gpu_runtime.fleet.fleet import Fleet
from gpu_runtime.runtime import Rollout
from gpu_runtime.spot.notices.notice import Notice


def worker_process(name: str) -> psutil.Process:
    """Return the process of a worker such as `spot-0`, whose name Ray has in its title."""
    titled = "ray::" + re.sub(r"\W", "_", name)
    found: list[psutil.Process] = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            named = process.name() == name or titled in " ".join(process.cmdline())
            if named and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    assert found, f"no process of worker {name}"
    return max(found, key=psutil.Process.create_time)  # others of its name may be about to end


def at_first_chunk(
    monkeypatch: pytest.MonkeyPatch, worker: str, act: Callable[[], object], fleet: type = Fleet
) -> None:
    """Act when the first chunk of a worker (`spot-0`, or any `spot`), or of its group, has come in."""
    on_chunk, acted = fleet.on_notice, threading.Event()

    def act_on_chunk(self: Any, device: Device, notice: Notice | None) -> None:
        members = device.name.split("+")
        if not acted.is_set() and any(one == worker or one.startswith(f"{worker}-") for one in members):
            acted.set()
            act()
        on_chunk(self, device, notice)

    monkeypatch.setattr(fleet, "on_notice", act_on_chunk)


def kill_at_first_chunk(monkeypatch: pytest.MonkeyPatch, worker: str, fleet: type = Fleet) -> None:
    """Kill a worker in the midst of a lease."""
    at_first_chunk(monkeypatch, worker, worker_process(worker).kill, fleet)


def same_bits(one: Rollout, other: Rollout) -> bool:
    """Return True if both have the same images and log-probabilities."""
    return all(
        np.array_equal(a.sample.image_HWC, b.sample.image_HWC)
        and np.array_equal(a.sample.trajectory.log_prob_W, b.sample.trajectory.log_prob_W)
        for a, b in zip(one.delivered, other.delivered, strict=True)
    )
