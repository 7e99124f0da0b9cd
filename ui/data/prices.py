"""Whether a run's dollars were paid, or are those of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_THIS_MACHINE = ("ray", "local", "")


def is_modelled(settings: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """Whether the processes of one machine without an accelerator stood for the devices: none was rented.

    Args:
        settings: of the run, as it stored them.
        environment: of the run; where it does not say which accelerators there were, none counts as seen.
    """
    runtime = settings.get("runtime")
    runtime = runtime if isinstance(runtime, Mapping) else {}
    # `ray_address`: as earlier versions named a cluster that was joined
    joined = runtime.get("cluster", "ray") not in _THIS_MACHINE or bool(runtime.get("ray_address"))
    return not joined and environment.get("accelerators", "none") == "none"
