"""The embedded tasks by name."""

from __future__ import annotations

import numpy as np

from gpu_runtime.embedded_tasks.edits import EditsTask
from gpu_runtime.embedded_tasks.glyphs import GlyphsTask
from gpu_runtime.embedded_tasks.moving_shapes import MovingShapesTask
from gpu_runtime.embedded_tasks.protocol import EmbeddedTask, RenderedPicture
from gpu_runtime.embedded_tasks.shapes import ShapesTask
from storage.errors import ConfigurationError, PromptFileError
from storage.prompts.files import PromptRecord

TASKS: dict[str, EmbeddedTask] = {
    task.name: task for task in (EditsTask(), GlyphsTask(), MovingShapesTask(), ShapesTask())
}


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
        image_HWC: uint8 RGB, shape (H, W, 3) or (F, H, W, 3).
    """
    for task in TASKS.values():
        frames = (task.frames,) if task.frames else ()
        if image_HWC.shape == (*frames, task.height, task.width, 3):
            try:
                return task.nearest_picture(prompt, image_HWC)
            except (ConfigurationError, PromptFileError):  # a prompt of another task
                continue
    return None
