"""Spotlight's algorithm in one file: Flow-GRPO (arXiv 2505.05470) with exploration of seeds, on a CPU.

An iteration takes P prompts, generates G images of each, rewards them, and takes one step of the optimiser
towards the images that are better than the others of their prompt. A prompt whose images are all equally good
teaches nothing. So exploration drafts more than G seeds and keeps the G whose rewards differ most. It drafts
with the weights from before the last training step: spot GPUs draft while the reserved ones train.

    python examples/algorithm.py                             # seconds: a model that writes three characters
    python examples/algorithm.py --iterations 2 --drafts 0   # without exploration

The second command ends with exactly the weights of `spotlight train --preset smoke`, because each random
number depends on (run seed, iteration, prompt, seed, step) and nothing else. `spotlight train` computes the
same on many devices, commits its work, and continues when spot instances are taken away.

Letters in tensor names: B batch, P prompts, G images of a prompt, R rows (one per stochastic step of an
image), S image tokens, C latent channels.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from gpu_runtime.diffusion.noise import NoiseStream, Purpose, integers, normal
from gpu_runtime.diffusion.sde_step import StepTimes, log_prob, transition
from gpu_runtime.exploration.plan import prompts_of_iteration
from gpu_runtime.exploration.selection import max_variance_subset
from gpu_runtime.learning.objectives.options import ADVANTAGE_CLIP, GrpoOptions
from gpu_runtime.models.loading import load_model
from gpu_runtime.rewards.registry import build_scorer
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.prompts.files import PromptRecord, load_prompts

Work = Sequence[tuple[PromptRecord, int]]
"""Images to generate: a prompt and a seed each."""


class Row(NamedTuple):
    """One stochastic denoising step of one image: an action of the policy, and how likely it was."""

    prompt: PromptRecord
    step: int
    before_SC: torch.Tensor
    after_SC: torch.Tensor
    log_prob: torch.Tensor


class Algorithm:
    """A model in training.

    Args:
        config: settings of the run.
        drafts: seeds of a prompt that exploration drafts, at least G; 0 takes the first G seeds.
    """

    def __init__(self, config: RunConfig, drafts: int) -> None:
        torch.set_num_threads(1)
        self.config, self.drafts = config, drafts
        self.model = load_model(config.model)
        self.scorer = build_scorer(config.reward)
        self.prompts = load_prompts(config.prompts.train)
        self.sigmas = self.model.sigmas(config.sampling.rollout_steps)
        self.weights = list(self.model.transformer.requires_grad_().parameters())
        s = config.optimizer
        self.optimizer = torch.optim.AdamW(self.weights, s.learning_rate, (0.9, s.beta2), weight_decay=1e-4)

    def run(self, iterations: int) -> list[float]:
        """Train; returns the mean reward of each iteration."""
        group, means = self.config.algorithm.group_size, []
        plan = self.explore(1)
        for iteration in range(1, iterations + 1):
            work = [(prompt, seed) for prompt, seeds in plan for seed in seeds]
            images, rows = self.rollout(work, iteration)
            reward_PG = self.reward(images, work).reshape(-1, group)
            # Before the step, as spot devices do that need not wait for it: with stale weights.
            plan = self.explore(iteration + 1) if iteration < iterations else []
            trained = self.train(rows, self.advantages(reward_PG))
            means.append(float(reward_PG.mean()))
            share = f"{trained} of {len(reward_PG)} prompts gave a gradient"
            print(f"iteration {iteration}: reward {means[-1]:.3f}, {share}")
        return means

    def explore(self, iteration: int) -> list[tuple[PromptRecord, Sequence[int]]]:
        """Take an iteration's prompts; draft many seeds for each and keep the G whose rewards differ most."""
        algorithm, plan = self.config.algorithm, []
        count, ids = algorithm.prompts_per_iteration, range(len(self.prompts))
        for prompt_id in sorted(prompts_of_iteration(ids, count, self.config.seed, iteration)):
            prompt, seeds = self.prompts[prompt_id], range(algorithm.group_size)
            if self.drafts:
                work = [(prompt, seed) for seed in range(self.drafts)]
                images, _ = self.rollout(work, iteration)
                seeds = max_variance_subset(self.reward(images, work).numpy(), len(seeds)).indices
            plan.append((prompt, seeds))
        return plan

    @torch.no_grad()
    def rollout(self, work: Work, iteration: int) -> tuple[list[np.ndarray], list[Row]]:
        """Generate images from noise; some of the denoising steps of each are stochastic, for training."""
        s, shape = self.config.sampling, self.model.latent_shape
        images: list[np.ndarray] = []
        rows: list[Row] = []
        for batch in _batches(work, s.batch_size):
            streams = [NoiseStream(self.config.seed, iteration, p.prompt_id, seed) for p, seed in batch]
            conditioning = self.model.encode_prompts([prompt.text for prompt, _ in batch])
            # The stochastic steps are a window at a random place; the other steps follow the ODE.
            room = s.window_stop - s.window_size
            start_B = torch.tensor(integers(streams, Purpose.WINDOW, room + 1))
            latents_BSC = normal(streams, Purpose.INITIAL, 0, shape)
            of_image: list[list[Row]] = [[] for _ in batch]
            for step in range(s.rollout_steps):
                inside_B = (start_B <= step) & (step < start_B + s.window_size)
                times = StepTimes.at(self.sigmas, torch.full((len(batch),), step))
                velocity_BSC = self.model.velocity(latents_BSC, times.sigma_B, conditioning)
                level_B = torch.where(inside_B, s.noise_level, 0.0)
                policy = transition(s.sde, latents_BSC, velocity_BSC, times, level_B)
                after_BSC = policy.sample(normal(streams, Purpose.SDE, step, shape))
                log_prob_B = log_prob(s.sde, after_BSC, policy)
                for place in inside_B.nonzero().flatten().tolist():
                    taken = latents_BSC[place], after_BSC[place], log_prob_B[place]
                    of_image[place].append(Row(batch[place][0], step, *taken))
                latents_BSC = after_BSC
            images += list(self.model.decode(latents_BSC).numpy())
            rows += [row for own in of_image for row in own]
        return images, rows

    def reward(self, images: list[np.ndarray], work: Work) -> torch.Tensor:
        """Judge each image by its own prompt: values in [0, 1], float64, shape (B,)."""
        pairs = zip(images, work, strict=True)
        values = [self.scorer.score(image, prompt).value for image, (prompt, _) in pairs]
        return torch.tensor(values, dtype=torch.float64)

    def advantages(self, reward_PG: torch.Tensor) -> torch.Tensor:
        """Return how much better each image is than the others of its prompt; NaN if all are the same."""
        centred_PG = reward_PG - reward_PG.mean(dim=1, keepdim=True)
        scaled_PG = centred_PG / (reward_PG.std(dim=1, correction=0, keepdim=True) + 1e-4)
        differs_P1 = centred_PG.abs().amax(dim=1, keepdim=True) > 1e-8
        return torch.where(differs_P1, scaled_PG.clamp(-ADVANTAGE_CLIP, ADVANTAGE_CLIP), torch.nan)

    def train(self, rows: list[Row], advantage_PG: torch.Tensor) -> int:
        """Take one step of the optimiser; return how many prompts gave a gradient."""
        s, clip = self.config.sampling, GrpoOptions(**self.config.algorithm.options).clip_range
        advantage_of_row = advantage_PG.float().flatten().repeat_interleave(s.window_size)
        pairs = [(row, A) for row, A in zip(rows, advantage_of_row, strict=True) if not A.isnan()]
        for batch in _batches(pairs, s.batch_size):
            before_RSC = torch.stack([row.before_SC for row, _ in batch])
            after_RSC = torch.stack([row.after_SC for row, _ in batch])
            old_log_prob_R = torch.stack([row.log_prob for row, _ in batch])
            advantage_R = torch.stack([advantage for _, advantage in batch])
            times = StepTimes.at(self.sigmas, torch.tensor([row.step for row, _ in batch]))
            conditioning = self.model.encode_prompts([row.prompt.text for row, _ in batch])
            velocity_RSC = self.model.velocity(before_RSC, times.sigma_B, conditioning)
            level_R = torch.full((len(batch),), s.noise_level)
            policy = transition(s.sde, before_RSC, velocity_RSC, times, level_R)
            # Flow-GRPO's loss: the clipped ratio of the step's probabilities, now to then, times advantage.
            ratio_R = torch.exp(log_prob(s.sde, after_RSC, policy) - old_log_prob_R)
            clipped_R = ratio_R.clamp(1 - clip, 1 + clip)
            loss_R = torch.maximum(-advantage_R * ratio_R, -advantage_R * clipped_R)
            loss_R.sum().backward()
        if pairs:
            for weight in self.weights:
                if weight.grad is not None:
                    weight.grad.div_(len(pairs))
            torch.nn.utils.clip_grad_norm_(self.weights, self.config.optimizer.max_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return int((~advantage_PG.isnan()).all(dim=1).sum())


def _batches(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[first : first + size] for first in range(0, len(items), size)]


def main() -> None:
    """Train the embedded model for a few iterations."""
    parser = argparse.ArgumentParser(description="Flow-GRPO with exploration of seeds, in one file.")
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--drafts", type=int, default=8, help="seeds drafted of each prompt; 0: none")
    arguments = parser.parse_args()
    Algorithm(load_config("smoke", [], {}), arguments.drafts).run(arguments.iterations)


if __name__ == "__main__":
    main()
