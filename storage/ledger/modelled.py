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
    the accelerators of the run's own machine decide; a cluster that it joined on another machine counts as
    rented, unless its settings switch accelerators off.

    Args:
        settings: stored settings of the run, a JSON object of any version.
        environment: environment of the run; if it does not list accelerators, it counts as having none.
    """
    if SIMULATED in environment:
        return True
    if devices := environment.get(DEVICES):
        return devices == CPU
    settings = settings if isinstance(settings, Mapping) else {}
    if _section(settings, "model").get("device") == "cpu":
        return True
    runtime = _section(settings, "runtime")
    return _is_here(str(runtime.get("cluster", "ray"))) and environment.get("accelerators", "none") == "none"


def _section(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = settings.get(name)
    return section if isinstance(section, Mapping) else {}


def _is_here(address: str) -> bool:
    """Return True for processes of this machine: the run's own, or those of a cluster that it joined here."""
    place = address.removeprefix("ray://")
    host = place.rpartition(":")[0] or place
    return address in _THIS_MACHINE or host.strip("[]") in ("localhost", "::1") or host.startswith("127.")
