"""The commands that a run's page shows: the dashboard itself starts and stops nothing."""

from __future__ import annotations

import shlex

from storage.config.loading import assignments, load_config
from storage.config.run_config import RunConfig
from storage.environment import PRESET
from storage.errors import ConfigurationError
from ui.data.run import RunView


def clone_command(view: RunView) -> str:
    """Return the command that starts a run with the settings of this one, ready to be changed.

    It names the run's preset, if that can still be read, and the settings that differ from it.

    Raises:
        ConfigurationError: the settings are of another version.
    """
    wanted, preset = view.row.config, view.row.environment.get(PRESET)
    try:
        base = load_config(preset, (), {})
    except ConfigurationError:  # its file is gone, or was changed
        base, preset = RunConfig(), None
    parts = ["spotlight train", *([f"--preset {shlex.quote(preset)}"] if preset else [])]
    parts += [f"--set {shlex.quote(assignment)}" for assignment in assignments(wanted, base)]
    return " \\\n    ".join(parts)


def stop_command(view: RunView) -> str:
    """Return the command that ends the run, to be typed on its machine; empty unless it is at work."""
    return f"spotlight stop {shlex.quote(view.row.run_id)}" if view.is_live else ""
