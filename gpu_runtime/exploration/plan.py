"""Which prompts and which seeds of them are rolled out in an iteration.

A plan is what exploration hands to the rollout. `plain` makes it from the configuration alone;
strategies that score candidate seeds fill `explored_score` too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SeedPlan:
    """Chosen seeds of an iteration.

    Attributes:
        iteration: the iteration that will roll them out.
        seeds: seed indices of each prompt_id; every prompt has the same number.
        explored_score: draft score by (prompt_id, seed index), where a draft was made.
    """

    iteration: int
    seeds: dict[int, tuple[int, ...]]
    explored_score: dict[tuple[int, int], float] = field(default_factory=dict)


def prompts_of_iteration(prompt_ids: Sequence[int], count: int, run_seed: int, iteration: int) -> list[int]:
    """The `count` prompts of an iteration (from 1): every prompt once an epoch, each in a new order.

    The order follows from (run seed, epoch, prompt), so a resumed run sees the same prompts.

    Raises:
        ValueError: if `count` exceeds the number of prompts.
    """
    if iteration < 1:
        raise ValueError(f"iteration is {iteration}; iterations count from 1")
    if not 1 <= count <= len(prompt_ids):
        raise ValueError(f"{count} prompts an iteration are asked of {len(prompt_ids)}; lower the number")
    first = (iteration - 1) * count
    chosen: list[int] = []
    epoch, place = divmod(first, len(prompt_ids))
    while len(chosen) < count:
        order = sorted(prompt_ids, key=lambda prompt: _shuffle_key(run_seed, epoch, prompt))
        # Where an epoch ends inside an iteration, its first prompts must not come twice.
        chosen += [prompt for prompt in order[place:] if prompt not in chosen][: count - len(chosen)]
        epoch, place = epoch + 1, 0
    return chosen


def plain_plan(prompt_ids: Sequence[int], group_size: int, iteration: int) -> SeedPlan:
    """The first `group_size` seeds of each prompt: noise streams differ by iteration anyway."""
    return SeedPlan(iteration, {prompt: tuple(range(group_size)) for prompt in prompt_ids})


def _shuffle_key(run_seed: int, epoch: int, prompt_id: int) -> bytes:
    return hashlib.blake2b(f"{run_seed}/{epoch}/{prompt_id}".encode(), digest_size=16).digest()
