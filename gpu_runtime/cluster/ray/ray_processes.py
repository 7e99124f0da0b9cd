"""Ray's processes on this machine: when one of them dies, Ray's core ends the driver without a message."""

from __future__ import annotations

import psutil

_MARKS = {
    "Ray's GCS server": ("gcs/gcs_server",),
    "Ray's raylet": ("raylet/raylet",),
    # Each has its own title once it is up.
    "Ray's dashboard agent": ("ray::DashboardAgent", "dashboard/agent.py"),
    "Ray's runtime environment agent": ("ray::RuntimeEnvAgent", "runtime_env/agent/main.py"),
}


def ray_processes() -> dict[str, int]:
    """Return name -> pid of those that this process has started."""
    found: dict[str, int] = {}
    for process in psutil.Process().children(recursive=True):
        try:
            line = " ".join(process.cmdline()[:4])  # the raylet's arguments name its agents too
        except psutil.Error:
            continue
        for name, marks in _MARKS.items():
            if any(mark in line for mark in marks):
                found.setdefault(name, process.pid)
    return found
