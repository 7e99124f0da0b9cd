"""Which prompts and which seeds of them are rolled out in an iteration, and what came of them.

A plan is what exploration hands to the rollout. `plain_plan` makes it from the configuration alone;
strategies that draft candidate seeds keep what they tried. `seed_figures` compares it with the rollout's
scores.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.prompts.files import PromptRecord

Note = tuple[str, str]
"""What people should know, as (kind of event, message)."""

Scores = Mapping[tuple[int, int], float]
"""By (prompt_id, seed index)."""


@dataclass(frozen=True)
class Candidate:
    """A draft that was made.

    Attributes:
        prompt_id, seed_index: whose noise stream it used.
        fidelity: `full`, or the name of a cheaper draft.
        policy_version: weights that drew it.
        value, exact, error: the judgement, as `rewards.protocol.Score` has it.
        round: the planner's round that asked for it; -1 for a re-score of the staleness monitor.
    """

    prompt_id: int
    seed_index: int
    fidelity: str
    policy_version: int
    value: float
    exact: bool
    error: str | None
    round: int


@dataclass(frozen=True)
class SeedPlan:
    """Chosen seeds of an iteration.

    Attributes:
        iteration: the iteration that will roll them out.
        seeds: seed indices of each prompt_id; every prompt has the same number.
        candidates: the drafts that it was chosen from; none in a plain plan.
        compared: prompts with enough drafts to say what a random group's variance would have been.
        figures: what exploration has to report, by metric name.
        notes: what people should know.
        refused: the ranks of its drafts cannot be trusted; draft again with fresh weights.
        superseded: drafts of a plan that was refused, in whose place this one came.
    """

    iteration: int
    seeds: dict[int, tuple[int, ...]]
    candidates: tuple[Candidate, ...] = ()
    compared: tuple[int, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    refused: bool = False
    superseded: tuple[Candidate, ...] = ()

    @property
    def stale_drafts(self) -> tuple[Candidate, ...]:
        """The drafts that newer weights may contradict: those that were refused, where some were.

        The drafts that came in their place are of the rollout's own weights.
        """
        return self.superseded or self.candidates

    def in_place_of(self, refused: SeedPlan) -> SeedPlan:
        """This plan with the drafts of a refused one: they were paid for, and show how wrong they were."""
        figures = self.figures | {"drafts_refused": float(len(refused.candidates))}
        return replace(self, superseded=refused.candidates, figures=figures)

    @property
    def explored_score(self) -> dict[tuple[int, int], float]:
        """Draft score by (prompt_id, seed index), where a draft was judged."""
        return {
            (draft.prompt_id, draft.seed_index): draft.value
            for draft in self.candidates
            if draft.error is None
        }


def plan_to_json(plan: SeedPlan) -> dict[str, Any]:
    """A plan as JSON values, to travel in a checkpoint."""
    # JSON has no integer keys.
    return asdict(plan) | {"seeds": list(plan.seeds.items())}


def plan_from_json(values: Mapping[str, Any]) -> SeedPlan:
    """The inverse of `plan_to_json`."""
    return SeedPlan(
        iteration=values["iteration"],
        seeds={prompt: tuple(seeds) for prompt, seeds in values["seeds"]},
        candidates=tuple(Candidate(**draft) for draft in values["candidates"]),
        # Plans of earlier checkpoints have more of these prompts.
        compared=tuple(values.get("compared", [prompt for prompt, _ in values.get("pool", ())])),
        figures=dict(values["figures"]),
        notes=tuple((kind, message) for kind, message in values["notes"]),
        refused=values["refused"],
        # Plans of earlier checkpoints have none.
        superseded=tuple(Candidate(**draft) for draft in values.get("superseded", ())),
    )


def prompts_of_iteration(prompt_ids: Sequence[int], count: int, run_seed: int, iteration: int) -> list[int]:
    """The `count` prompts of an iteration (from 1): every prompt once an epoch, each in a new order.

    The order follows from (run seed, epoch, prompt), so a resumed run sees the same prompts. No
    prompt comes twice in an iteration.

    Args:
        prompt_ids: all training prompts.
        count: prompts of an iteration.
        run_seed: of the run.
        iteration: counted from 1.

    Raises:
        ValueError: if `count` exceeds the number of prompts.
    """
    if iteration < 1:
        raise ValueError(f"iteration is {iteration}; iterations count from 1")
    if not 1 <= count <= len(prompt_ids):
        raise ValueError(f"{count} prompts an iteration are asked of {len(prompt_ids)}; lower the number")
    ids = tuple(prompt_ids)
    epoch, place = divmod((iteration - 1) * count, len(ids))
    chosen = _epoch_order(ids, count, run_seed, epoch)[place : place + count]
    if len(chosen) < count:
        chosen += _epoch_order(ids, count, run_seed, epoch + 1)[: count - len(chosen)]
    return list(chosen)


@lru_cache(maxsize=8)
def _epoch_order(ids: tuple[int, ...], count: int, run_seed: int, epoch: int) -> tuple[int, ...]:
    """The order of an epoch's prompts.

    Where an iteration reaches over from the epoch before, its prompts of then must not open this
    epoch too: others are drawn forward. So an order depends on the one before, from the first on.
    """
    order: tuple[int, ...] = ()
    for number in range(epoch + 1):
        shuffled = sorted(ids, key=lambda prompt, number=number: _shuffle_key(run_seed, number, prompt))
        reached_over = (number * len(ids)) % count
        before = set(order[len(order) - reached_over :])
        fresh = [prompt for prompt in shuffled if prompt not in before]
        head = fresh[: count - reached_over] if reached_over else []
        order = (*head, *(prompt for prompt in shuffled if prompt not in set(head)))
    return order


def plain_plan(prompt_ids: Sequence[int], group_size: int, iteration: int) -> SeedPlan:
    """The first `group_size` seeds of each prompt: noise streams differ by iteration anyway.

    Args:
        prompt_ids: of the iteration.
        group_size: seeds of each prompt, G.
        iteration: counted from 1.
    """
    return SeedPlan(iteration, {prompt: tuple(range(group_size)) for prompt in prompt_ids})


def _shuffle_key(run_seed: int, epoch: int, prompt_id: int) -> bytes:
    return hashlib.blake2b(f"{run_seed}/{epoch}/{prompt_id}".encode(), digest_size=16).digest()


def rollout_requests(
    plan: SeedPlan, prompts: Mapping[int, PromptRecord], run_seed: int, policy_version: int
) -> list[SampleRequest]:
    """The requests of a plan, ordered by prompt and seed.

    Args:
        plan: the seeds of the iteration.
        prompts: the prompts by identifier.
        run_seed: of the run.
        policy_version: of the weights to generate with.
    """
    return [
        SampleRequest(
            RequestKind.ROLLOUT,
            run_seed,
            plan.iteration,
            prompt_id,
            seed,
            policy_version,
            prompts[prompt_id].text,
            source=prompts[prompt_id].source,
        )
        for prompt_id, seeds in sorted(plan.seeds.items())
        for seed in seeds
    ]


def seed_figures(plan: SeedPlan, signal: Scores, value: Scores) -> dict[str, float]:
    """Metrics of an iteration: what exploration reported, and what came of it.

    Args:
        plan: the iteration's plan.
        signal: what was learned from, of every sample that was judged.
        value: the graded scores of the same.

    Returns:
        The plan's figures, `spread_rollout` (of the signal within a prompt, the mean over the prompts that
        the plan's own spread is of; over all where it has none; without those of which a sample was not
        judged) and, where kept seeds were drafted, `draft_error` (mean distance of a seed's draft and
        rollout score).
    """
    explored = [prompt for prompt in plan.seeds if prompt in plan.compared] or list(plan.seeds)
    spreads = []
    for prompt in explored:
        group = [signal[prompt, seed] for seed in plan.seeds[prompt] if (prompt, seed) in signal]
        if len(group) == len(plan.seeds[prompt]):
            spreads.append(statistics.pvariance(group))
    figures = plan.figures | ({"spread_rollout": statistics.fmean(spreads)} if spreads else {})
    drafted = plan.explored_score
    errors = [abs(drafted[identity] - score) for identity, score in value.items() if identity in drafted]
    return figures | {"draft_error": statistics.fmean(errors)} if errors else figures
