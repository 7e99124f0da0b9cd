"""Building a device's worker in its own process, so that the driver, which names this, needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_runtime.worker.worker import DeviceWorker


def device_worker(*args: Any) -> DeviceWorker:
    """Build a worker from the arguments of its class."""
    from gpu_runtime.worker.worker import DeviceWorker

    return DeviceWorker(*args)
