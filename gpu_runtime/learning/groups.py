"""The samples to train on, made from scored rollouts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.learning.advantages import Advantages, group_advantages, normalised_sum
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.rewards.protocol import Score
from storage.config.run_config import RunConfig
from storage.errors import RewardError, TrainingError


def training_samples(
    samples: Sequence[GeneratedSample],
    scores: Sequence[Score],
    config: RunConfig,
    policy_version: int | None = None,
) -> tuple[Advantages, list[TrainingSample]]:
    """Return advantages of P groups of G, and the samples to train on: those of groups with variance.

    Groups without variance are included if `algorithm.zero_variance_groups` is `train`.
    A group with an image that the scorer failed on is dropped whole, so that every group has G samples.
    Rewards are the `normalised_sum` of scores' terms, if they have terms, and else the scores' values.

    Args:
        samples: P * G samples, the groups one after another.
        scores: their scores, in the same order.
        config: settings of the signal (graded or exact) and of how advantages are normalised.
        policy_version: version of the weights that training begins with; samples of another one are stale.
            None: the version that drew all samples.

    Raises:
        RewardError: if no group is judged whole.
    """
    graded = config.reward.signal == "graded"
    signal = [score.value if graded else float(score.exact) for score in scores]
    prompts = list(dict.fromkeys(sample.request.prompt_id for sample in samples))
    reward_PG = np.array(signal, dtype=np.float64).reshape(len(prompts), -1)
    failed = np.array([score.error is not None for score in scores]).reshape(reward_PG.shape)
    judged_P = np.asarray(~failed.any(axis=1))
    if not judged_P.any():
        first = next(score.error for score in scores if score.error is not None)
        raise RewardError(
            f"the scorer failed on {int(failed.sum())} of {len(scores)} images, at least one in each of the "
            f"{len(prompts)} prompt groups; a group with a failed image is not trained on, so none is left. "
            f"The first error was: {first}. Check the scorer, then resume the run"
        )
    if any(score.terms for score in scores):
        reward_PG = _normalised(scores, reward_PG)
    algorithm = config.algorithm
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
    """Refuse samples of weights that training must not learn from.

    For samples of the current weights the ratio at the first update is checked too. For older ones this is
    the only check: a device computes with weights of a version only while their checksum is that version's.

    Args:
        samples: samples of an iteration.
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
                f"{request.iteration} is of weights v{request.policy_version}; training from "
                f"v{policy_version} takes v{oldest} to v{policy_version}. Resume from the last checkpoint"
            )


def _normalised(scores: Sequence[Score], reward_PG: np.ndarray) -> np.ndarray:
    """Return the signal that replaces the rewards; the values of dropped groups do not matter."""
    weights = [term.weight for term in next(score.terms for score in scores if score.terms)]
    nothing = [0.0] * len(weights)
    term_BK = np.array(
        [[term.value for term in score.terms] or nothing for score in scores], dtype=np.float64
    )
    return normalised_sum(term_BK.T.reshape(len(weights), *reward_PG.shape), weights)
