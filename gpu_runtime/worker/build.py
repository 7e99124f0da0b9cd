"""Builds a device's worker in its own process; the driver, which names this, does not import torch for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_runtime.worker.worker import DeviceWorker


def device_worker(*args: Any) -> DeviceWorker:
    """A worker, from the arguments of its class."""
    from gpu_runtime.worker.worker import DeviceWorker

    return DeviceWorker(*args)
