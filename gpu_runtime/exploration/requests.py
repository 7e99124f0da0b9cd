"""From a plan of seeds to the requests of a rollout."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_runtime.exploration.plan import SeedPlan
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.prompts.files import PromptRecord


def rollout_requests(
    plan: SeedPlan, prompts: Mapping[int, PromptRecord], run_seed: int, policy_version: int
) -> list[SampleRequest]:
    """The requests of a plan, ordered by prompt and seed."""
    return [
        SampleRequest(
            RequestKind.ROLLOUT,
            run_seed,
            plan.iteration,
            prompt_id,
            seed,
            policy_version,
            prompts[prompt_id].text,
        )
        for prompt_id, seeds in sorted(plan.seeds.items())
        for seed in seeds
    ]
