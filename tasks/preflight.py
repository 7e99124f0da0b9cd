"""What can be known to be wrong is refused before anything starts."""

from __future__ import annotations

import torch

from gpu_runtime.actors.cluster import refuse_silent_address
from gpu_runtime.models.loading import load_model
from gpu_runtime.rewards.registry import build_scorer
from gpu_runtime.runtime import load_run_prompts
from storage.config import RunConfig
from storage.errors import ConfigurationError


def check(config: RunConfig) -> list[str]:
    """Read the prompts, load the model and the scorer once, and judge one blank image.

    Returns:
        Warnings: what a run can live with, but a person should know.

    Raises:
        ConfigurationError, PromptFileError: a value that the run cannot work with.
        ModelError: the model's files are missing or do not fit.
    """
    refuse_silent_address(config.runtime.ray_address)
    train, evaluate = load_run_prompts(config)
    model = load_model(config.model)
    model.encode_prompts([train[0].text])
    scorer = build_scorer(config.reward.scorer)
    blank = model.decode(torch.zeros(1, *model.latent_shape, device=model.device))[0].numpy()
    try:
        scorer.score(blank, train[0])
    except Exception as error:
        # Third-party code: whatever it raises on a prompt of this file, the run cannot start.
        raise ConfigurationError(
            f"scorer {config.reward.scorer!r} cannot judge prompt {train[0].text!r} of prompts.train = "
            f"{config.prompts.train!r}: {type(error).__name__}: {error}; choose prompts that fit the scorer"
        ) from error
    shared = {prompt.text for prompt in train} & {prompt.text for prompt in evaluate}
    if not shared:
        return []
    return [
        f"{len(shared)} of {len(evaluate)} held-out prompts are trained on too, such as {min(shared)!r}; "
        "their images still differ by seed"
    ]
