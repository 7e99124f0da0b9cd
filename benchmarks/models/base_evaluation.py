"""How good an embedded model is before any reinforcement learning: the figures of the model cards.

python -m benchmarks.base_evaluation embedded:glyphs
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.embedded_tasks.registry import find_task
from gpu_runtime.models.embedded.model import EmbeddedModel
from gpu_runtime.rewards.guard import score_all
from gpu_runtime.rewards.registry import build_scorer
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.config.reward import RewardConfig
from storage.config.run_config import SamplingConfig
from storage.prompts.files import load_prompts


@dataclass(frozen=True)
class BaseFigures:
    """Means over `images` images of held-out prompts.

    Attributes:
        images: how many.
        denoising_steps: of the ODE sampler.
        exact: part of the images that do all that their prompt asks.
        score: mean reward, in [0, 1].
        exact_by_tag: `exact` for each GenEval tag; empty for a task without tags.
    """

    images: int
    denoising_steps: int
    exact: float
    score: float
    exact_by_tag: dict[str, float]


def evaluate_base(path: str | Path, *, denoising_steps: int = 20, seeds: int = 2) -> BaseFigures:
    """Draw the task's held-out prompts, `seeds` images each, and judge them by its reward.

    Args:
        path: what `EmbeddedModel.load` takes.
        denoising_steps: ODE steps an image.
        seeds: images of each prompt.

    Raises:
        ModelError: the model's files are missing.
        RewardError: the scorer failed on every image.
    """
    model = EmbeddedModel.load(path)
    task = find_task(model.settings.task)
    prompts = load_prompts(f"builtin:{task.name}-evaluate")
    requests = [
        SampleRequest(
            RequestKind.EVALUATE, 0, 0, prompt.prompt_id, seed, 0, prompt.text, source=prompt.source
        )
        for seed in range(seeds)
        for prompt in prompts
    ]
    sampling = SamplingConfig(evaluate_steps=denoising_steps, batch_size=32)
    samples = Sampler(model, sampling).generate(requests)
    judged = prompts * seeds
    scores = score_all(
        build_scorer(RewardConfig(scorer=task.scorer)), [sample.image_HWC for sample in samples], judged
    )
    by_tag: dict[str, list[bool]] = defaultdict(list)
    for prompt, score in zip(judged, scores, strict=True):
        if "tag" in prompt.metadata:
            by_tag[prompt.metadata["tag"]].append(score.exact)
    return BaseFigures(
        images=len(scores),
        denoising_steps=denoising_steps,
        exact=sum(score.exact for score in scores) / len(scores),
        score=sum(score.value for score in scores) / len(scores),
        exact_by_tag={tag: sum(hits) / len(hits) for tag, hits in sorted(by_tag.items())},
    )


def main(arguments: list[str] | None = None) -> None:
    """Command line: a model's folder or `embedded:NAME`."""
    import argparse

    parser = argparse.ArgumentParser(description="Measure an embedded model on its held-out prompts.")
    parser.add_argument("path")
    parser.add_argument("--denoising-steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(evaluate_base(options.path, denoising_steps=options.denoising_steps, seeds=options.seeds))


if __name__ == "__main__":
    main()
