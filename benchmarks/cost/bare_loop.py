"""An iteration without Prefect, Ray and storage: one process, one loop.

Orchestration is measured against it, and it runs on a bare GPU machine. Because every number is a function of
its identity, it ends with the weights of the orchestrated run.

    python -m benchmarks.bare_loop --preset glyphs --iterations 5 [--set section.key=value]
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from benchmarks.report import finish, options
from gpu_runtime.exploration.plan import plain_plan, prompts_of_iteration, rollout_requests
from gpu_runtime.learning.advantages import training_samples
from gpu_runtime.learning.weights import weights_digest
from gpu_runtime.rewards.guard import refuse_total_failure, score_each
from gpu_runtime.rewards.registry import build_scorer
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.prompts.files import load_run_prompts


@dataclass
class BareResult:
    """Times of each phase, one entry per iteration, and the digest of the final weights."""

    rollout_s: list[float] = field(default_factory=list)
    reward_s: list[float] = field(default_factory=list)
    train_s: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    max_ratio_deviation: float = 0.0
    digest: str = ""

    @property
    def iteration_s(self) -> list[float]:
        """Whole iterations."""
        return [sum(phases) for phases in zip(self.rollout_s, self.reward_s, self.train_s, strict=True)]


def run(config: RunConfig, iterations: int) -> BareResult:
    """Run the first iterations of a run."""
    train_prompts, _ = load_run_prompts(config)
    by_id = {prompt.prompt_id: prompt for prompt in train_prompts}
    scorer = build_scorer(config.reward)
    worker = DeviceWorker(config, trains=True)
    worker.use_training_weights(WeightsVersion(0))
    result = BareResult()
    version = 0
    for iteration in range(1, iterations + 1):
        prompts = prompts_of_iteration(
            list(by_id), config.algorithm.prompts_per_iteration, config.seed, iteration
        )
        plan = plain_plan(prompts, config.algorithm.group_size, iteration)
        requests = rollout_requests(plan, by_id, config.seed, version)
        with _timed(result.rollout_s):
            samples = worker.generate(requests)
        with _timed(result.reward_s):
            images = [sample.image_HWC for sample in samples]
            scores = score_each(scorer, images, [by_id[request.prompt_id] for request in requests])
            refuse_total_failure(scorer.name, scores)
        with _timed(result.train_s):
            _, kept = training_samples(samples, scores, config.algorithm, config.reward.signal)
            report = worker.train(kept)
        version += bool(report.training_steps)
        worker.use_training_weights(WeightsVersion(version))
        result.rewards.append(statistics.fmean(score.value for score in scores))
        result.max_ratio_deviation = max(result.max_ratio_deviation, report.ratio_deviation)
    result.digest = weights_digest(worker.weights())
    return result


@contextmanager
def _timed(to: list[float]) -> Iterator[None]:
    """Append a block's seconds to a list, waiting for the GPU if there is one."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    began = time.perf_counter()
    yield
    wait()
    to.append(time.perf_counter() - began)


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__)
    parser.add_argument("--preset", default="glyphs")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--iterations", type=int, default=5)
    arguments = parser.parse_args()
    config = load_config(arguments.preset, arguments.set, os.environ)
    result = run(config, arguments.iterations)
    # The first iteration warms up caches and is left out if there is another.
    warm = slice(1 if arguments.iterations > 1 else 0, None)
    images = config.algorithm.prompts_per_iteration * config.algorithm.group_size
    medians = {name: statistics.median(getattr(result, name)[warm])
               for name in ("iteration_s", "rollout_s", "reward_s", "train_s")}  # fmt: skip
    on_gpu = torch.cuda.is_available() and config.model.device != "cpu"
    device = torch.cuda.get_device_name() if on_gpu else "cpu"
    figures = {
        "device": device,
        "iterations": arguments.iterations,
        **medians,
        "images_per_s": images / medians["rollout_s"],
        "reward_first": result.rewards[0],
        "reward_last": result.rewards[-1],
        "max_ratio_deviation": result.max_ratio_deviation,
        "digest": result.digest,
    }
    finish("bare_loop", figures, arguments, device)


if __name__ == "__main__":
    main()
