"""The embedded tasks by name."""

from __future__ import annotations

import numpy as np

from gpu_runtime.embedded_tasks.edits import EditsTask
from gpu_runtime.embedded_tasks.glyphs import GlyphsTask
from gpu_runtime.embedded_tasks.protocol import EmbeddedTask, RenderedPicture
from gpu_runtime.embedded_tasks.shapes import ShapesTask
from storage.errors import ConfigurationError
from storage.prompts.files import PromptRecord

TASKS: dict[str, EmbeddedTask] = {"edits": EditsTask(), "glyphs": GlyphsTask(), "shapes": ShapesTask()}


def find_task(name: str) -> EmbeddedTask:
    """Return the task called `name`.

    Raises:
        ConfigurationError: there is no such task.
    """
    if name not in TASKS:
        raise ConfigurationError(f"unknown embedded task {name!r}; choose one of: {', '.join(sorted(TASKS))}")
    return TASKS[name]


def rendered_picture(prompt: PromptRecord, image_HWC: np.ndarray) -> RenderedPicture | None:
    """Return the correct picture for an image; None unless an embedded task draws such prompts in this size.

    Args:
        prompt: the image's prompt.
        image_HWC: uint8 RGB, shape (H, W, 3).
    """
    for task in TASKS.values():
        if image_HWC.shape[:2] == (task.height, task.width):
            try:
                return task.nearest_picture(prompt, image_HWC)
            except ConfigurationError:  # a prompt of another task
                continue
    return None
