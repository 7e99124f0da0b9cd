"""What a worker answers a call for denoising steps."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_runtime.diffusion.samples import GeneratedImage, SampleState
from gpu_runtime.spot.notices.notice import Notice


@dataclass(frozen=True)
class SampleChunk:
    """What a call has done: states to commit, or finished samples.

    Attributes:
        states: the samples as far as they are; empty when they are finished, or not a step further.
        samples: the finished ones, all at once; of drafts that are not trained on the images alone, as only
            scorers want them.
        notice: the machine's preemption notice, where one stands. The device has then given the lease up.
        step_s: seconds that each denoising step of the call took, on average; None where it did none.
    """

    states: tuple[SampleState, ...] = ()
    samples: tuple[GeneratedImage, ...] = ()
    notice: Notice | None = None
    step_s: float | None = None
