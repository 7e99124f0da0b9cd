"""What an iteration leaves of its seeds: figures, candidates and thumbnails."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.dispatch.sample_phase import Delivered
from gpu_runtime.exploration.plan import (
    Candidate,
    SeedPlan,
    plain_plan,
    prompts_of_iteration,
    seed_figures,
)
from gpu_runtime.fleet.seed_search import SeedReview
from gpu_runtime.runtime import Rollout
from gpu_runtime.scheduling.scores import Score
from storage.prompts.files import PromptRecord
from storage.record.records import SampleImage
from tasks.iteration.phases import candidate_records, sample_images
from tests.tiny_run import request


def draft(prompt: int, seed: int, value: float, version: int = 3, **other: Any) -> Candidate:
    values = {"fidelity": "full", "exact": value == 1, "error": None, "round": 0} | other
    return Candidate(prompt, seed, policy_version=version, value=value, **values)


PLAN = SeedPlan(
    4, {7: (0, 2), 8: (0, 1)},
    (draft(7, 0, 0.5), draft(7, 1, 0.0, error="no"), draft(7, 2, 1.0), draft(7, 3, 0.0), draft(9, 0, 1.0)),
    figures={"drafts": 5.0},
)  # fmt: skip


def session() -> Any:
    return SimpleNamespace(
        runtime=SimpleNamespace(train_prompts=[PromptRecord(n, f"prompt {n}") for n in range(10)])
    )


def test_figures_of_a_rollout():
    signal = {(7, 0): 1.0, (7, 2): 0.0, (8, 0): 0.0, (8, 1): 0.0}
    value = {(7, 0): 0.9, (7, 2): 0.8, (8, 0): 0.1}
    figures = seed_figures(PLAN, signal, value)
    assert figures == {
        "drafts": 5.0,
        "spread_rollout": pytest.approx(0.25 / 2),
        "draft_error": pytest.approx((0.4 + 0.2) / 2),
    }
    assert "draft_error" not in seed_figures(SeedPlan(1, {8: (0, 1)}), signal, value)


def test_the_spread_of_a_rollout_is_of_explored_prompts():
    signal = {(7, 0): 1.0, (7, 2): 0.5, (8, 0): 0.0, (8, 1): 1.0}
    plan = replace(PLAN, compared={7: (0.0, 0.25)})
    assert seed_figures(plan, signal, {})["spread_rollout"] == pytest.approx(0.0625)
    plain = seed_figures(SeedPlan(1, plan.seeds), signal, {})
    assert plain["spread_rollout"] == pytest.approx((0.0625 + 0.25) / 2)
    del signal[8, 1]  # its prompt is left out
    assert seed_figures(SeedPlan(1, plan.seeds), signal, {}) == {"spread_rollout": pytest.approx(0.0625)}
    assert seed_figures(SeedPlan(1, plan.seeds), {}, {}) == {}


def test_candidates_are_ranked_among_their_like():
    review = SeedReview(rescored=(draft(7, 1, 0.25, 4, round=-1), draft(7, 3, 0.5, 4, round=-1)))
    records = candidate_records(session(), PLAN, review)
    assert [(r.prompt_id, r.seed_index, r.round, r.rank, r.kept) for r in records] == [
        (7, 0, 0, 1, True),
        (7, 1, 0, 3, False),  # without a judgement comes last
        (7, 2, 0, 0, True),
        (7, 3, 0, 2, False),
        (9, 0, 0, 0, False),  # a prompt that was explored and not kept
        (7, 1, -1, 1, False),
        (7, 3, -1, 0, False),
    ]
    assert {r.prompt for r in records} == {"prompt 7", "prompt 9"}


def test_refused_drafts_are_recorded_beside_those_made_in_their_place():
    refused = SeedPlan(4, {7: (0, 3)}, (draft(7, 0, 0.0), draft(7, 3, 1.0), draft(8, 1, 0.5)), refused=True)
    anew = (draft(7, 0, 1.0, 4), draft(7, 2, 0.5, 4))
    plan = SeedPlan(4, {7: (0, 2)}, anew, figures={"drafts": 2.0}).in_place_of(refused)
    assert plan.figures == {"drafts": 2.0, "drafts_refused": 3.0}
    records = candidate_records(session(), plan, SeedReview(rescored=(draft(7, 3, 0.5, 4, round=-1),)))
    assert [(r.prompt_id, r.seed_index, r.policy_version, r.rank, r.kept) for r in records] == [
        (7, 0, 4, 0, True),
        (7, 2, 4, 1, True),
        (7, 0, 3, 1, False),  # the same seed, drawn by older weights
        (7, 3, 3, 0, False),
        (8, 1, 3, 0, False),
        (7, 3, 4, 2, False),
    ]
    assert len({(r.prompt_id, r.seed_index, r.fidelity, r.policy_version) for r in records}) == len(records)


def pictured(plan: SeedPlan, values: dict[tuple[int, int], float]) -> list[SampleImage]:
    """The thumbnails of a rollout, whose images have their place as colour, by score of prompt and seed."""
    delivered, scores = [], []
    for place, ((prompt, seed), value) in enumerate(values.items()):
        image = np.full((300, 600, 3), place, np.uint8)
        untold: Any = None
        delivered.append(Delivered(GeneratedSample(request(prompt, seed), image, untold, untold), "spot-0"))
        scores.append(Score(value, False, ""))
    return sample_images(Rollout(plan, 0, delivered), scores)


def test_thumbnails_of_the_best_and_the_worst():
    values = {(0, 0): 0.5, (0, 1): 1.0, (0, 2): 0.0, (1, 0): 0.5, (1, 1): 0.5, (1, 2): 0.5}
    images = pictured(SeedPlan(1, {0: (0, 1, 2), 1: (0, 1, 2)}), values)
    # Of equal ones the first is the best and the last the worst.
    assert [(i.prompt_id, i.seed_index) for i in images] == [(0, 1), (0, 2), (1, 0), (1, 2)]
    picture = Image.open(io.BytesIO(images[0].png))
    assert picture.size == (256, 128) and picture.getpixel((9, 9)) == (1, 1, 1)


def test_thumbnails_are_of_prompts_from_all_over_the_file():
    numbers = []
    for iteration in range(1, 41):
        plan = plain_plan(prompts_of_iteration(range(100), 16, 3, iteration), 1, iteration)
        numbers += [image.prompt_id for image in pictured(plan, {(prompt, 0): 1.0 for prompt in plan.seeds})]
    assert 40 < np.mean(numbers) < 60
