"""Turns scored rollouts into training samples, by group-relative advantages (GRPO, arXiv 2402.03300).

A sample is compared with the others of its prompt. Shape suffixes: P prompts, G group, K rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.learning.objectives.options import ADVANTAGE_CLIP
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.scheduling.scores import Score
from storage.config.run_config import AlgorithmConfig
from storage.errors import RewardError, TrainingError

_EPSILON = 1e-4
"""Term added to the deviation, as in Flow-GRPO's public code, to keep tiny spreads finite."""

_NO_SPREAD = 1e-8
"""Largest deviation from the mean of a group without variance, which carries no gradient."""


def normalised_sum(term_KPG: np.ndarray, weight_K: Sequence[float]) -> np.ndarray:
    """Combine rewards: normalise each in its prompt group, then add them by weight (GDPO, 2601.05242).

    In plain sums, the reward that varies most dominates a group's normalisation; here each counts by its
    weight. A reward that is equal for the whole group adds nothing. A sample to which a reward does not
    apply is excluded from that reward's mean and deviation and gets nothing from it: counting it as 0 would
    favour all other samples and pay the gate's own reward twice.

    GDPO then divides by the deviation of the batch. With `algorithm.advantage_std = "group"`, a group in
    which only one reward differs gets that reward's full strength, however small its weight.

    Args:
        term_KPG: K rewards of P groups of G, any float type; NaN where a reward does not apply.

    Returns:
        float64 of shape (P, G); each group's mean is 0.
    """
    term = term_KPG.astype(np.float64)
    rows = [_normalised(row) for row in term.reshape(-1, term.shape[-1])]
    normalised = np.stack(rows).reshape(term.shape)
    return np.stack([weight * one for weight, one in zip(weight_K, normalised, strict=True)]).sum(axis=0)


def _normalised(value_G: np.ndarray) -> np.ndarray:
    """Return standardised values where rewards apply; 0 elsewhere, and if all are equal."""
    counts_G = ~np.isnan(value_G)
    found_G = np.zeros_like(value_G)
    if counts_G.any():
        counted = value_G[counts_G]
        centred = counted - counted.mean()
        if np.abs(centred).max() > _NO_SPREAD:
            found_G[counts_G] = centred / (counted.std() + _EPSILON)
    return found_G


@dataclass(frozen=True)
class Advantages:
    """The advantages of an iteration, P prompts of G samples.

    Attributes:
        value_PG: float64, clamped; 0 in dropped groups.
        kept_P: False if all of a group's rewards are equal and such groups are dropped, or if a reward is
            missing.
        failed: number of groups with a missing reward.
    """

    value_PG: np.ndarray
    kept_P: np.ndarray
    failed: int = 0

    @property
    def dropped(self) -> int:
        """Number of groups dropped for lack of variance."""
        return int((~self.kept_P).sum()) - self.failed


def group_advantages(
    reward_PG: np.ndarray,
    std: Literal["group", "batch", "none"] = "group",
    judged_P: np.ndarray | None = None,
    drop_equal: bool = True,
) -> Advantages:
    """Return A = (R - mean of the group) / (deviation + 1e-4), clamped to +-`ADVANTAGE_CLIP`.

    Args:
        reward_PG: rewards, any float type.
        std: deviation of the `group` or of the whole `batch`, or no division.
        judged_P: False if a reward of the group is missing; None if none is. Such a group is dropped whole,
            and the others are normalised without it: the mean and deviation of a smaller group would differ
            from the policy's, and rewards are rarely missing at random.
        drop_equal: True to drop groups without variance; otherwise their advantages are 0.

    Raises:
        ValueError: if a reward is not finite or groups have fewer than 2 samples.
    """
    if reward_PG.ndim != 2 or reward_PG.shape[1] < 2:
        raise ValueError(f"rewards have shape {reward_PG.shape}; expected (prompts, at least 2)")
    if judged_P is not None and not judged_P.all():
        judged = group_advantages(reward_PG[judged_P], std, drop_equal=drop_equal)
        value_PG, kept_P = np.zeros(reward_PG.shape), np.zeros(len(judged_P), dtype=bool)
        value_PG[judged_P], kept_P[judged_P] = judged.value_PG, judged.kept_P
        return Advantages(value_PG, kept_P, int((~judged_P).sum()))
    reward = reward_PG.astype(np.float64)
    if not np.isfinite(reward).all():
        raise ValueError("a reward is not finite; its group should have been excluded")
    # Row by row, so a group's bits do not depend on other groups.
    mean_P1, deviation_P1 = (np.array([of(row) for row in reward])[:, None] for of in (np.mean, np.std))
    centred = reward - mean_P1
    differs_P = np.abs(centred).max(axis=1) > _NO_SPREAD
    if std == "group":
        centred = centred / (deviation_P1 + _EPSILON)
    elif std == "batch":
        centred = centred / (reward.std() + _EPSILON)
    value = np.where(differs_P[:, None], centred.clip(-ADVANTAGE_CLIP, ADVANTAGE_CLIP), 0.0)
    return Advantages(value, differs_P if drop_equal else np.ones_like(differs_P))


def training_samples(
    samples: Sequence[GeneratedSample],
    scores: Sequence[Score],
    algorithm: AlgorithmConfig,
    signal: Literal["graded", "exact"],
    policy_version: int | None = None,
) -> tuple[Advantages, list[TrainingSample]]:
    """Return advantages of P groups of G, and the samples to train on: those of groups with variance.

    Groups without variance are included if `algorithm.zero_variance_groups` is `train`.
    A group with an image on which the scorer failed is dropped whole, so every group has G samples.
    Rewards are the `normalised_sum` of scores' terms if any have terms, otherwise the scores' values.

    Args:
        samples: P * G samples, the groups one after another.
        scores: their scores, in the same order.
        signal: the score's figure that counts (`reward.signal`).
        policy_version: version of the weights that training begins with; samples of other versions are
            stale. None: the version that drew all samples.

    Raises:
        RewardError: if no group is completely judged.
    """
    rewards = [score.value if signal == "graded" else float(score.exact) for score in scores]
    prompts = list(dict.fromkeys(sample.request.prompt_id for sample in samples))
    reward_PG = np.array(rewards, dtype=np.float64).reshape(len(prompts), -1)
    failed = np.array([score.error is not None for score in scores]).reshape(reward_PG.shape)
    judged_P = np.asarray(~failed.any(axis=1))
    if not judged_P.any():
        first = next(score.error for score in scores if score.error is not None)
        raise RewardError(
            f"the scorer failed on {int(failed.sum())} of {len(scores)} images, at least one in each of the "
            f"{len(prompts)} prompt groups; groups with a failed image are dropped, so none is left. "
            f"The first error was: {first}. Check the scorer, then resume the run"
        )
    weights = next(([term.weight for term in score.terms] for score in scores if score.terms), [])
    if weights:
        # Pairs from the prompt file have no terms, nor do dropped groups, whose values do not matter.
        term_BK = np.array(
            [[term.value for term in score.terms] or [score.value] * len(weights) for score in scores],
            np.float64,
        )
        reward_PG = normalised_sum(term_BK.T.reshape(len(weights), *reward_PG.shape), weights)
    drop_equal = algorithm.zero_variance_groups == "drop"
    advantages = group_advantages(reward_PG, algorithm.advantage_std, judged_P, drop_equal)
    kept = advantages.kept_P.repeat(reward_PG.shape[1]).tolist()
    values = advantages.value_PG.flatten().tolist()
    return advantages, [
        TrainingSample(
            sample.request, sample.trajectory, sample.latents_SC, value,
            stale=policy_version not in (None, sample.request.policy_version),
        )
        for sample, value, keep in zip(samples, values, kept, strict=True)
        if keep
    ]  # fmt: skip


def check_versions(samples: Sequence[GeneratedSample], policy_version: int, oldest: int) -> None:
    """Refuse samples from weights that training must not learn from.

    For samples of the current weights, the ratio at the first update is checked too. For older ones this is
    the only check: a device computes with a version's weights only if their checksum matches.

    Args:
        policy_version: version of the weights that training begins with.
        oldest: oldest version allowed; below `policy_version` only where a strategy trains on its drafts.

    Raises:
        TrainingError: if one is of another version.
    """
    for sample in samples:
        if not oldest <= sample.request.policy_version <= policy_version:
            request = sample.request
            raise TrainingError(
                f"the sample of prompt {request.prompt_id}, seed {request.seed_index} in iteration "
                f"{request.iteration} is from weights v{request.policy_version}; training from "
                f"v{policy_version} accepts v{oldest} to v{policy_version}. Resume from the last checkpoint"
            )
