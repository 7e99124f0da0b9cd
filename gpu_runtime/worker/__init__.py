"""One device's work, the calls that it serves, and the history that it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_runtime.worker.worker import DeviceWorker


def device_worker(*args: Any) -> DeviceWorker:
    """Build a worker in its process from its class's arguments; the driver names this without torch."""
    from gpu_runtime.worker.worker import DeviceWorker

    return DeviceWorker(*args)
