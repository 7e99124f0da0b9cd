"""The embedded tasks by name."""

from __future__ import annotations

from gpu_runtime.embedded_tasks.glyphs import GlyphsTask
from gpu_runtime.embedded_tasks.protocol import EmbeddedTask
from gpu_runtime.embedded_tasks.shapes import ShapesTask
from storage.errors import ConfigurationError

TASKS: dict[str, EmbeddedTask] = {"glyphs": GlyphsTask(), "shapes": ShapesTask()}


def find_task(name: str) -> EmbeddedTask:
    """Return the task called `name`.

    Raises:
        ConfigurationError: there is no such task.
    """
    if name not in TASKS:
        raise ConfigurationError(f"unknown embedded task {name!r}; choose one of: {', '.join(sorted(TASKS))}")
    return TASKS[name]
