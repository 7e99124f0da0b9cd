"""Drafts that one device has in flight: a few denoising steps at a time, so that they can be dropped.

Plain Python without Ray, like the worker that holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_runtime.diffusion.sampler import Sampler, SampleState
from gpu_runtime.scheduling.requests import SampleRequest
from gpu_runtime.spot.notice import Notice
from storage.errors import RuntimeFailure


@dataclass(frozen=True)
class DraftImage:
    """A draft's uint8 RGB image, shape (H, W, 3). Its trajectory stays behind: nobody learns from it."""

    request: SampleRequest
    image_HWC: np.ndarray


@dataclass(frozen=True)
class DraftChunk:
    """What a call has done.

    Attributes:
        images: None while there are denoising steps left.
        notice: the machine's preemption notice, where one stands: its drafts end.
    """

    images: list[DraftImage] | None
    notice: Notice | None = None


class DraftsInFlight:
    """At most one batch of drafts.

    Args:
        sampler: the rollout's, so that a full draft is a rollout to the bit under equal weights.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._states: list[SampleState] = []
        self._preview_step: int | None = None

    def begin(self, requests: Sequence[SampleRequest], preview_step: int | None) -> None:
        """Begin drafts in place of those that are there.

        Args:
            requests: what to draft; all of one kind.
            preview_step: after how many denoising steps to decode the model's prediction; None for
                finished images.
        """
        self._states = self._sampler.begin(requests)
        self._preview_step = preview_step

    def advance(self, steps: int) -> list[DraftImage] | None:
        """Do at most `steps` denoising steps; the images once there is none left, else None.

        Raises:
            RuntimeFailure: if no draft is in flight.
        """
        if not self._states:
            raise RuntimeFailure("no draft is in flight on this worker; begin_drafts() first")
        first = self._states[0]
        last_step = self._preview_step or self._sampler.total_steps(first.request)
        states = self._sampler.advance(self._states, min(steps, last_step - first.step))
        if states[0].step < last_step:
            self._states = states
            return None
        self.drop()
        samples = (
            self._sampler.finish(states) if self._preview_step is None else self._sampler.preview(states)
        )
        return [DraftImage(sample.request, sample.image_HWC) for sample in samples]

    def drop(self) -> None:
        """Forget what is in flight: its weights are about to change."""
        self._states = []
