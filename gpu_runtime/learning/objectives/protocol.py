"""The interface between the trainer and its objectives, which a training step minimises.

An objective turns samples into rows, each a forward and backward pass of the policy, and the trainer
feeds it the rows in batches of the sampler's fixed shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from gpu_runtime.diffusion.samples import Trajectory
from gpu_runtime.scheduling.requests import SampleRequest


@dataclass(frozen=True)
class TrainingSample:
    """One sample to train on.

    Attributes:
        trajectory: its stochastic denoising steps, for learning or for checking weights.
        latents_SC: its final latents, float32, for objectives that learn from them.
        advantage: distance from its group's mean, normalised and clamped; 0 in a group without variance
            (`algorithm.zero_variance_groups`).
        stale: True if older weights than those that training begins with drew it, as the strategy intends;
            its ratio at the first update need not be 1.
    """

    request: SampleRequest
    trajectory: Trajectory
    latents_SC: np.ndarray
    advantage: float
    stale: bool = False


class Row(NamedTuple):
    """One forward and backward pass: a sample, and the index of its denoising step or noise level."""

    sample: TrainingSample
    place: int


class BatchTerms(NamedTuple):
    """The results of rows: sums of a batch, or means of an update.

    Attributes:
        loss: loss without the KL.
        kl: distance from the reference policy, unweighted; 0 if the objective needs none and
            algorithm.kl_weight is 0.
        clipped: number of rows whose gradient is clipped to 0, or their share.
        deviation: largest |ratio - 1| of stochastic steps of samples that are not stale; 0 at an
            iteration's first update, when the weights are those that drew them.
        ratio: probability ratios of the policy to the one that drew the samples; 0 for objectives without.
        ratio_kl: r - 1 - log r of these ratios.
        pair_accuracy: pairs in which the policy, relative to the reference, prefers the winner; indifference
            counts half; 0 for objectives without pairs.
        pair_margin: the size of that preference, in nats; 0 for objectives without pairs.
    """

    loss: float
    kl: float
    clipped: float
    deviation: float
    ratio: float = 0.0
    ratio_kl: float = 0.0
    pair_accuracy: float = 0.0
    pair_margin: float = 0.0


class Objective(Protocol):
    """A loss over samples.

    It keeps nothing from one iteration to the next; when a setting changes in a run, a new one is built.
    """

    def before_steps(self, samples: Sequence[TrainingSample]) -> float:
        """Examine an iteration's samples before any weight changes.

        The first update's gradients have already been added.

        Returns:
            The largest |ratio - 1| of the samples that are not stale, unless `backward` returns it.
        """
        ...

    def keep(self, rows: Sequence[Row]) -> None:
        """Keep what a later update's batch of rows needs from the policy before any weight changes."""
        ...

    def end(self) -> None:
        """Forget what was kept from an iteration, completed or not."""
        ...

    def rows(self, samples: Sequence[TrainingSample]) -> list[Row]:
        """Return the rows of samples, in order.

        Args:
            samples: samples of whole prompt groups, by identity.
        """
        ...

    def backward(self, rows: Sequence[Row], weight: float) -> BatchTerms:
        """Add the gradient of the sum over one batch's rows.

        Args:
            weight: weight of each row: 1, or 0 for a batch that is computed but does not count.
        """
        ...
