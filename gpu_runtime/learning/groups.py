"""From scored rollouts to the samples that are trained on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpu_runtime.diffusion.sampler import GeneratedSample
from gpu_runtime.learning.advantages import Advantages, group_advantages
from gpu_runtime.learning.trainer import TrainingSample
from gpu_runtime.rewards.protocol import Score
from storage.config import RunConfig


def training_samples(
    samples: Sequence[GeneratedSample], scores: Sequence[Score], config: RunConfig
) -> tuple[Advantages, list[TrainingSample]]:
    """Advantages of P groups of G, and the samples of the groups that have variance.

    Args:
        samples: P * G samples, the groups one after another.
        scores: their scores, in the same order.
        config: says what is learned from (graded or exact) and how advantages are normalised.
    """
    graded = config.reward.signal == "graded"
    signal = [score.value if graded else float(score.exact) for score in scores]
    groups = len({sample.request.prompt_id for sample in samples})
    reward_PG = torch.tensor(signal, dtype=torch.float64).reshape(groups, -1)
    advantages = group_advantages(reward_PG, config.algorithm.advantage_std, config.algorithm.advantage_clip)
    kept = advantages.kept_P.repeat_interleave(reward_PG.shape[1]).tolist()
    values = advantages.value_PG.flatten().tolist()
    return advantages, [
        TrainingSample(sample.request, sample.trajectory, value)
        for sample, value, keep in zip(samples, values, kept, strict=True)
        if keep
    ]
