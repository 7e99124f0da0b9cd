"""Samples as they travel between processes: in flight, finished, and what is learned from.

Arrays are numpy's: the process that hands samples on needs no torch.

Shape suffixes: W stochastic steps, S tokens, C latent channels, H W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu_runtime.scheduling.requests import SampleRequest


@dataclass(frozen=True)
class Trajectory:
    """The stochastic steps of one sample, W of them: what the trainer needs.

    Attributes:
        step_W: denoising steps, int64, ascending.
        before_WSC, after_WSC: latents before and after each, float32.
        log_prob_W: log-probability of each under the policy that drew it, float32.
    """

    step_W: np.ndarray
    before_WSC: np.ndarray
    after_WSC: np.ndarray
    log_prob_W: np.ndarray


@dataclass(frozen=True)
class SampleState:
    """A sample in flight: everything another worker needs to go on with it.

    Attributes:
        request: its identity.
        step: denoising steps done.
        window_start: first stochastic step (rollout and explore).
        latents_SC: float32 on the CPU.
        trajectory: stochastic steps done so far; a draft that is not trained on has none.
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
        request: its identity.
        image_HWC: uint8 RGB, shape (H, W, 3).
    """

    request: SampleRequest
    image_HWC: np.ndarray


@dataclass(frozen=True)
class GeneratedSample(GeneratedImage):
    """A finished sample.

    Attributes:
        trajectory: its stochastic steps.
        latents_SC: float32 latents that the image was decoded from.
    """

    trajectory: Trajectory
    latents_SC: np.ndarray
