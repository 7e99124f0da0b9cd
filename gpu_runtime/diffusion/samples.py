"""Samples that are sent between processes: in flight, finished, and with their trajectories.

Arrays are numpy's: the process that passes samples on needs no torch.

Shape suffixes: W stochastic steps, S tokens, C latent channels, H W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from gpu_runtime.scheduling.requests import SampleRequest


@dataclass(frozen=True)
class Trajectory:
    """The W stochastic steps of one sample, which the trainer needs.

    Attributes:
        step_W: denoising steps, int64, ascending.
        before_WSC, after_WSC: latents before and after each, float32.
        log_prob_W: log-probability of each under the policy that drew it, float32.
    """

    step_W: np.ndarray
    before_WSC: np.ndarray
    after_WSC: np.ndarray
    log_prob_W: np.ndarray

    @classmethod
    def empty(cls, shape: tuple[int, int]) -> Self:
        """Return a trajectory without steps, for latents of a shape (S, C)."""
        none = np.empty((0, *shape), np.float32)
        return cls(np.empty(0, np.int64), none, none, np.empty(0, np.float32))


@dataclass(frozen=True)
class SampleState:
    """A sample in flight: everything another worker needs to continue with it.

    Attributes:
        step: denoising steps done.
        window_start: first stochastic step (rollout and explore).
        latents_SC: latents, float32 on the CPU.
        trajectory: stochastic steps done so far; empty for a draft that is not trained on.
    """

    request: SampleRequest
    step: int
    window_start: int
    latents_SC: np.ndarray
    trajectory: Trajectory


@dataclass(frozen=True)
class GeneratedImage:
    """The image of a finished sample: all that a scorer needs.

    Attributes:
        image_HWC: image, uint8 RGB, shape (H, W, 3); for a clip its F frames, (F, H, W, 3).
    """

    request: SampleRequest
    image_HWC: np.ndarray


@dataclass(frozen=True)
class GeneratedSample(GeneratedImage):
    """A finished sample.

    Attributes:
        latents_SC: float32 latents from which the image was decoded.
    """

    trajectory: Trajectory
    latents_SC: np.ndarray
