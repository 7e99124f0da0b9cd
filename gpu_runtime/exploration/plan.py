"""The prompts and seeds that an iteration rolls out, and their results.

Exploration hands a plan to the rollout. `plain_plan` makes one from the configuration alone; plans of
strategies that draft candidate seeds also hold the candidates. `seed_figures` compares a plan with the
rollout's scores.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.prompts.files import PromptRecord

Note = tuple[str, str]
"""An event to record, as (kind of event, message)."""

Scores = Mapping[tuple[int, int], float]
"""Scores by (prompt_id, seed index)."""


@dataclass(frozen=True)
class Candidate:
    """A draft that was made.

    Attributes:
        prompt_id, seed_index: identity of its noise stream.
        fidelity: `full`, or the name of a cheaper draft.
        policy_version: version of the weights that drew it.
        value, exact, error: the judgement, as `scheduling.scores.Score` has it.
        round: planner's round that asked for it; -1 for a re-score of the staleness monitor.
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
    """The chosen seeds of an iteration.

    Attributes:
        iteration: iteration that will roll them out.
        seeds: seed indices of each prompt_id; every prompt has the same number.
        candidates: drafts that the seeds were chosen from; empty in a plain plan.
        compared: variances of the draft scores of a random group and of the chosen one, by prompt_id; only
            for prompts with enough drafts to estimate the first.
        refused: True if its drafts' ranks cannot be trusted; redraft with fresh weights.
        superseded: drafts of the refused plan that this one replaces.
    """

    iteration: int
    seeds: dict[int, tuple[int, ...]]
    candidates: tuple[Candidate, ...] = ()
    compared: dict[int, tuple[float, float]] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    refused: bool = False
    superseded: tuple[Candidate, ...] = ()

    @property
    def stale_drafts(self) -> tuple[Candidate, ...]:
        """The drafts that newer weights may contradict: the refused ones, if any.

        Drafts that replaced them use the rollout's own weights.
        """
        return self.superseded or self.candidates

    def in_place_of(self, refused: SeedPlan) -> SeedPlan:
        """Return this plan with a refused plan's drafts: they were paid for, and their error is measured."""
        figures = self.figures | {"drafts_refused": float(len(refused.candidates))}
        return replace(self, superseded=refused.candidates, figures=figures)

    @property
    def explored_score(self) -> dict[tuple[int, int], float]:
        """Draft score by (prompt_id, seed index), for judged drafts."""
        return {
            (draft.prompt_id, draft.seed_index): draft.value
            for draft in self.candidates
            if draft.error is None
        }


def plan_to_json(plan: SeedPlan) -> dict[str, Any]:
    """Return a plan as JSON values, for a checkpoint."""
    # JSON has no integer keys.
    return asdict(plan) | {"seeds": list(plan.seeds.items()), "compared": list(plan.compared.items())}


def plan_from_json(values: Mapping[str, Any]) -> SeedPlan:
    """Return the plan that `plan_to_json` turned into JSON values."""
    return SeedPlan(
        iteration=values["iteration"],
        seeds={prompt: tuple(seeds) for prompt, seeds in values["seeds"]},
        candidates=tuple(Candidate(**draft) for draft in values["candidates"]),
        compared={prompt: (random, chosen) for prompt, (random, chosen) in values["compared"]},
        figures=dict(values["figures"]),
        notes=tuple((kind, message) for kind, message in values["notes"]),
        refused=values["refused"],
        superseded=tuple(Candidate(**draft) for draft in values["superseded"]),
    )


def prompts_of_iteration(prompt_ids: Sequence[int], count: int, run_seed: int, iteration: int) -> list[int]:
    """Return the `count` prompts of an iteration: every prompt once per epoch, in a new order each epoch.

    The order follows from (run seed, epoch, prompt), so a resumed run sees the same prompts. No
    prompt occurs twice in an iteration.

    Args:
        iteration: number of the iteration, from 1.

    Raises:
        ValueError: if `count` exceeds the number of prompts.
    """
    if iteration < 1:
        raise ValueError(f"iteration is {iteration}; iterations start at 1")
    if not 1 <= count <= len(prompt_ids):
        raise ValueError(f"{count} prompts per iteration, but only {len(prompt_ids)} exist; lower the number")
    ids = tuple(prompt_ids)
    epoch, place = divmod((iteration - 1) * count, len(ids))
    chosen = _epoch_order(ids, count, run_seed, epoch)[place : place + count]
    if len(chosen) < count:
        chosen += _epoch_order(ids, count, run_seed, epoch + 1)[: count - len(chosen)]
    return list(chosen)


@lru_cache(maxsize=8)
def _epoch_order(ids: tuple[int, ...], count: int, run_seed: int, epoch: int) -> tuple[int, ...]:
    """Return the order of an epoch's prompts.

    If an iteration spans two epochs, its prompts from the earlier one must not also open the later one,
    so others move forward. Each order therefore depends on all orders before it.
    """
    order: tuple[int, ...] = ()
    for number in range(epoch + 1):
        names = {prompt: f"{run_seed}/{number}/{prompt}".encode() for prompt in ids}
        keys = {prompt: hashlib.blake2b(name, digest_size=16).digest() for prompt, name in names.items()}
        shuffled = sorted(ids, key=keys.__getitem__)
        reached_over = (number * len(ids)) % count
        before = set(order[len(order) - reached_over :])
        fresh = [prompt for prompt in shuffled if prompt not in before]
        head = fresh[: count - reached_over] if reached_over else []
        order = (*head, *(prompt for prompt in shuffled if prompt not in set(head)))
    return order


def plain_plan(prompt_ids: Sequence[int], group_size: int, iteration: int) -> SeedPlan:
    """Return the first `group_size` seeds of each prompt; noise streams differ by iteration anyway.

    Args:
        iteration: number of the iteration, from 1.
    """
    return SeedPlan(iteration, {prompt: tuple(range(group_size)) for prompt in prompt_ids})


def rollout_requests(
    plan: SeedPlan, prompts: Mapping[int, PromptRecord], run_seed: int, policy_version: int
) -> list[SampleRequest]:
    """Return the requests of a plan, ordered by prompt and seed.

    Args:
        policy_version: version of the weights to generate with.
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


def draft_spreads(compared: Collection[tuple[float, float]]) -> dict[str, float]:
    """Return the means of the variances of `SeedPlan.compared`, by figure; empty without prompts."""
    if not compared:
        return {}
    random, kept = zip(*compared, strict=True)
    return {"spread_random": statistics.fmean(random), "spread_kept": statistics.fmean(kept)}


def seed_figures(plan: SeedPlan, signal: Scores, value: Scores) -> dict[str, float]:
    """Return an iteration's metrics: those of exploration, and its seeds' results.

    Args:
        signal: score learned from, for every judged sample.
        value: graded scores of the same samples.

    Returns:
        The plan's figures; `spread_rollout`, the mean variance of the signal within a prompt, over the
        prompts that the plan's own spreads cover or, if they cover none, over all prompts; and, if kept
        seeds were drafted, `draft_error`, the mean distance between a seed's draft and rollout score. To
        be comparable, all spreads exclude prompts with a sample that was not judged.
    """
    groups = {
        prompt: [signal[prompt, seed] for seed in seeds]
        for prompt, seeds in plan.seeds.items()
        if prompt in (plan.compared or plan.seeds) and all((prompt, seed) in signal for seed in seeds)
    }
    figures = dict(plan.figures)
    if groups:
        figures |= draft_spreads([plan.compared[prompt] for prompt in groups if prompt in plan.compared])
        figures["spread_rollout"] = statistics.fmean(map(statistics.pvariance, groups.values()))
    drafted = plan.explored_score
    errors = [abs(drafted[identity] - score) for identity, score in value.items() if identity in drafted]
    return figures | {"draft_error": statistics.fmean(errors)} if errors else figures
