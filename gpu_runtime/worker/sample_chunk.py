"""A worker's answer to a call for denoising steps."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_runtime.diffusion.samples import GeneratedImage, SampleState
from gpu_runtime.spot.notices.notice import Notice


@dataclass(frozen=True)
class SampleChunk:
    """The result of a call: states to commit, or finished samples.

    Attributes:
        states: states that the samples have reached; empty if they are finished, or no step was done.
        samples: finished samples, all at once; only the images of drafts that are not trained on, as only
            scorers need them.
        notice: machine's preemption notice, if it is under one. Then the device has given the lease up.
        step_s: mean seconds per denoising step of the call; None if it did none.
    """

    states: tuple[SampleState, ...] = ()
    samples: tuple[GeneratedImage, ...] = ()
    notice: Notice | None = None
    step_s: float | None = None
