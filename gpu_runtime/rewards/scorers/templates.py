"""A judge of embedded tasks by correlation with their renderers' drawings: no OCR engine, no contours.

The rewards of these tasks are `ocr`, `shapes`, `edits` and `moving-shapes`. This one uses another method on
purpose: as `evaluation.judge` it shows whether images really have what those rewards praise.

Shape suffixes: H, W pixels, D values of a window, K templates, N windows.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

from gpu_runtime.embedded_tasks import glyphs, shapes
from gpu_runtime.embedded_tasks.edits import edit_of
from gpu_runtime.embedded_tasks.moving_shapes import asks_for_motion
from gpu_runtime.rewards.edit_rules import judge_edit
from gpu_runtime.rewards.geneval_rules import Detection, check_shapes, judge
from gpu_runtime.rewards.motion_rules import judge_motion
from gpu_runtime.rewards.protocol import Score, Scorer
from gpu_runtime.rewards.text_rules import target_text
from storage.errors import PromptFileError, RewardError
from storage.prompts.files import PromptRecord

_CELL = glyphs.GlyphsTask.width // glyphs.LENGTH
"""Width of a character's cell, in pixels."""

_DISPLACEMENTS = tuple(product(range(-2, 3), repeat=2))
"""Displacements down and right: up to one pixel more than the renderer's."""

_LEAST_FIT = 0.5
"""Least fit of an object to a shape; see `find_shapes`."""

_MOST_FOUND = shapes.MOST_OBJECTS + 2


def check_prompt(prompt: PromptRecord) -> None:
    """Refuse a prompt that no task draws.

    Raises:
        PromptFileError: if it has no three characters in quotes, no row of shapes, no edit and no motion.
    """
    if asks_for_motion(prompt):
        return
    if "edit" in prompt.metadata:
        edit_of(prompt)
        return
    if prompt.metadata.get("include"):
        check_shapes(prompt)
        return
    text = target_text(prompt.text).upper()
    if len(text) != glyphs.LENGTH or not set(text) <= set(glyphs.CHARACTERS):
        raise PromptFileError(
            f"prompt {prompt.text!r} asks for {text!r}; `templates` reads {glyphs.LENGTH} letters A to Z or "
            "digits, as the embedded task glyphs draws them: choose another judge"
        )


class TemplatesScorer(Scorer):
    """A scorer for the prompts of the embedded tasks.

    For glyphs, `value` is the mean over the characters of the correlation with the requested one, 0 if
    another fits better. For shapes it is GenEval's graded value of the shapes found, times how well they fit.
    For edits and clips it is the value of `judge_edit` and `judge_motion`, by the shapes that fit best.
    """

    name = "templates"
    takes_clips = True

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3), or a clip (F, H, W, 3).

        Raises:
            PromptFileError: see `check_prompt`.
            RewardError: if the image's size is not the renderer's.
        """
        check_prompt(prompt)
        if "edit" in prompt.metadata:
            return judge_edit(image_HWC, prompt, find_shapes)
        if asks_for_motion(prompt):
            return judge_motion(image_HWC, prompt, find_shapes)
        task = shapes.ShapesTask if prompt.metadata.get("include") else glyphs.GlyphsTask
        if image_HWC.shape[:2] != (task.height, task.width):
            raise RewardError(
                f"an image of {image_HWC.shape[1]} x {image_HWC.shape[0]} pixels; `templates` judges those "
                f"of the task {task.name}, which are {task.width} x {task.height}"
            )
        if task is shapes.ShapesTask:
            found = find_shapes(image_HWC)
            fit = sum(item.confidence for item in found) / max(len(found), 1)
            score = judge(found, prompt)
            return Score(score.value * fit, score.exact, f"{score.detail}, fit {fit:.2f}")
        read, correlations = read_glyphs(image_HWC, target_text(prompt.text).upper())
        exact = all(correlation > 0 for correlation in correlations)
        return Score(sum(correlations) / len(correlations), exact, read)


def read_glyphs(image_HWC: np.ndarray, asked: str) -> tuple[str, list[float]]:
    """Read a sign cell by cell: the character whose drawing correlates best with the brightness.

    Args:
        image_HWC: uint8 RGB image, of the size of the task glyphs.
        asked: requested characters, one per cell.

    Returns:
        The text that was read, and the correlation of each cell, 0 where another character was read.
    """
    brightness_HW = image_HWC.mean(axis=-1, dtype=np.float64)
    read, correlations = "", []
    for place, wanted in enumerate(asked):
        cell_D = _normalised(brightness_HW[:, place * _CELL : (place + 1) * _CELL].reshape(1, -1))[0]
        # The best of all displacements, for each character separately.
        fits = (_glyph_templates() @ cell_D).reshape(len(glyphs.CHARACTERS), -1).max(axis=1)
        best = int(fits.argmax())
        read += glyphs.CHARACTERS[best]
        correlations.append(float(min(max(fits[best], 0.0), 1.0)) * (glyphs.CHARACTERS[best] == wanted))
    return read, correlations


def find_shapes(image_HWC: np.ndarray) -> list[Detection]:
    """Find shapes one after another: each time the one that fits best anywhere, which is then painted over.

    A shape's fit is the share of its difference from the background, in squared error, that the image has:
    1 for the drawing itself, 0 for the background.

    Args:
        image_HWC: uint8 RGB image, at least as large as a shape.
    """
    left_HWC = image_HWC.astype(np.float64) - np.array(shapes.BACKGROUND)
    names, templates_KD = _shape_templates()
    energy_K = (templates_KD**2).sum(axis=1)
    across = image_HWC.shape[1] - shapes.SIZE + 1
    found: list[Detection] = []
    while len(found) < _MOST_FOUND:
        windows = np.lib.stride_tricks.sliding_window_view(left_HWC, (shapes.SIZE, shapes.SIZE), axis=(0, 1))
        windows_ND = windows.transpose(0, 1, 3, 4, 2).reshape(-1, templates_KD.shape[1])
        # 1 - |window - template|^2 / |template|^2
        fit_NK = (2 * windows_ND @ templates_KD.T - (windows_ND**2).sum(axis=1, keepdims=True)) / energy_K
        window, template = divmod(int(fit_NK.argmax()), len(names))
        fit = float(fit_NK[window, template])
        if fit < _LEAST_FIT:
            break
        top, left = divmod(window, across)
        box = (float(left), float(top), float(left + shapes.SIZE), float(top + shapes.SIZE))
        found.append(Detection(*names[template], box, min(fit, 1.0)))
        left_HWC[top : top + shapes.SIZE, left : left + shapes.SIZE] = 0.0
    return found


@lru_cache(maxsize=1)
def _glyph_templates() -> np.ndarray:
    """Return each character in the middle cell, at every displacement, normalised: (K * displacements, D)."""
    drawn = [glyphs.coverage(f" {character} ") for character in glyphs.CHARACTERS]
    cells = [
        np.roll(coverage_HW, displacement, axis=(0, 1))[:, _CELL : 2 * _CELL].ravel()
        for coverage_HW in drawn
        for displacement in _DISPLACEMENTS
    ]
    return _normalised(np.stack(cells).astype(np.float64))


@lru_cache(maxsize=1)
def _shape_templates() -> tuple[list[tuple[str, str]], np.ndarray]:
    """Return each template's class and colour, and its difference from the background: (K, D)."""
    names = list(product(shapes.CLASSES, shapes.COLOURS))
    background = np.array(shapes.BACKGROUND, dtype=np.float64)
    return names, np.stack([(shapes.patch(*name) - background).ravel() for name in names])


def _normalised(rows_ND: np.ndarray) -> np.ndarray:
    """Return rows with mean 0 and length 1; a constant row becomes 0."""
    centred = rows_ND - rows_ND.mean(axis=1, keepdims=True)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return centred / np.where(length > 1e-9, length, 1.0)
