"""Measurement of the images of an evaluation while the next ones are generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import fmean
from typing import Self

import numpy as np

from gpu_runtime.embedded_tasks.protocol import RenderedPicture
from gpu_runtime.embedded_tasks.registry import rendered_picture
from gpu_runtime.quality.figures import diversity_figures, image_figures, truth_figures
from storage.pictures import frame_places, is_clip
from storage.prompts.files import PromptRecord


class QualityMeter:
    """Measures the images of one evaluation; a context manager that ends its thread.

    One thread measures while the devices generate, so that they wait for the last image only.
    """

    def __init__(self, prompts: Mapping[int, PromptRecord]) -> None:
        self._prompts = prompts
        self._measured: dict[tuple[int, int], Future[dict[str, float]]] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="quality")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def add(self, prompt_id: int, seed_index: int, image_HWC: np.ndarray) -> None:
        """Queue an image for measurement.

        Args:
            image_HWC: uint8 RGB, shape (H, W, 3); for a clip (F, H, W, 3).
        """
        call = self._thread.submit(measured, image_HWC, self._prompts[prompt_id])
        self._measured[prompt_id, seed_index] = call

    def figures(self, latents: Sequence[tuple[int, int, np.ndarray]]) -> list[dict[str, float]]:
        """Wait until all images are measured and return their figures.

        Args:
            latents: prompt, seed and latents of each added image, in the order of the result.
        """
        diversity = diversity_figures([values for *_, values in latents], [prompt for prompt, *_ in latents])
        return [
            self._measured[prompt, seed].result() | others
            for (prompt, seed, _), others in zip(latents, diversity, strict=True)
        ]


def measured(image_HWC: np.ndarray, prompt: PromptRecord) -> dict[str, float]:
    """Return an image's figures, and its distance to the renderer's if an embedded task draws its prompt.

    Those of a clip are means over its first, middle and last frame.
    """
    truth = rendered_picture(prompt, image_HWC)
    frames = [(image_HWC, truth)]
    if is_clip(image_HWC):
        frames = [
            (image_HWC[place], truth and RenderedPicture(truth.image_HWC[place], truth.drawn_HW[place]))
            for place in frame_places(len(image_HWC), 3)
        ]
    found = [image_figures(image) | (truth_figures(image, drawn) if drawn else {}) for image, drawn in frames]
    return {name: fmean(figures[name] for figures in found) for name in found[0]}
