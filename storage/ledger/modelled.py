"""The distinction between a run's paid and modelled dollars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.environment import CPU, DEVICES, SIMULATED

MODELLED = "(modelled)"
"""The mark beside a sum that was not paid: no device was rented."""

_THIS_MACHINE = ("ray", "local", "", "auto")


def is_modelled(settings: Any, environment: Mapping[str, str]) -> bool:
    """Return True if no device was rented: processes without an accelerator stood for them, or nothing.

    Workers report their devices. If an old version did not record them, or before the workers have loaded,
    the accelerators of the run's own machine decide (none, if its environment lists none); a cluster that it
    joined on another machine counts as rented, unless its settings, of any version, switch accelerators off.
    """
    if SIMULATED in environment:
        return True
    if devices := environment.get(DEVICES):
        return devices == CPU
    settings = settings if isinstance(settings, Mapping) else {}
    sections = (settings.get(name) for name in ("model", "runtime"))
    model, runtime = (section if isinstance(section, Mapping) else {} for section in sections)
    if model.get("device") == "cpu":
        return True
    address = str(runtime.get("cluster", "ray"))
    place = address.removeprefix("ray://")
    host = (place.rpartition(":")[0] or place).strip("[]")
    is_here = address in _THIS_MACHINE or host in ("localhost", "::1") or host.startswith("127.")
    return is_here and environment.get("accelerators", "none") == "none"
