"""The record of an iteration's seeds: their review, candidates and thumbnails."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from gpu_runtime.exploration.measured_iterations import IterationTimes
from gpu_runtime.exploration.plan import Candidate, SeedPlan
from gpu_runtime.exploration.strategies.strategy import DECIDED, TrainingEvidence
from gpu_runtime.fleet.seed_search import SeedReview
from gpu_runtime.runtime import Rollout, Trained
from gpu_runtime.scheduling.scores import Score
from storage.clock import now
from storage.pictures import picture_file
from storage.record.records import CandidateRecord, SampleImage
from storage.record.results import held_out_scores
from tasks.iteration.session import Session

GALLERY_PROMPTS = 2
"""Prompts of an iteration whose best and worst image are kept for the dashboard."""

_THUMBNAIL_SIDE = 256
"""The side of a thumbnail in pixels."""


def review_seeds(
    session: Session,
    rolled: Rollout,
    scores: list[Score],
    trained: Trained,
    next_plan: SeedPlan | None,
    rolling_since: float,
) -> SeedReview:
    """Review an iteration's seeds, and report what people should know of them and of the next ones.

    What the strategy has decided by measured times is recorded here, before it takes effect.

    Args:
        scores: one per sample, in the same order.
        rolling_since: Unix time in seconds at which its rollout began.
    """
    held_out = partial(held_out_scores, session.store, session.run_id)
    times = _times(session, rolled, trained, now() - rolling_since)
    evidence = TrainingEvidence(trained.report.off_policy, held_out, times)
    review = session.runtime.review(rolled, scores, next_plan, evidence)
    session.record_decisions()
    notes = (*(next_plan.notes if next_plan is not None else ()), *review.notes)
    for kind, message in notes:
        session.store.add_event(session.run_id, kind, message)
        if kind == DECIDED:
            session.log.note(message)
    return review


def _times(session: Session, rolled: Rollout, trained: Trained, rolling_s: float) -> IterationTimes:
    """Return what an iteration took, all but its commit, `rolling_s` after its rollout began."""
    seconds = session.seconds
    return IterationTimes(
        rollout_s=seconds["rollout"],
        judging_s=seconds["reward"],
        train_s=trained.left_s,
        draft_wait_s=seconds["explore_wait"],
        # Ranks that do not hold cost this in every iteration; other drafts before a rollout are made once.
        whole_s=rolling_s + seconds.get("redraft", 0.0),
        trained=trained.samples,
        rollers=len({one.worker for one in rolled.delivered}),
        beside_s=trained.beside_s,
    )


def candidate_records(session: Session, plan: SeedPlan, review: SeedReview) -> list[CandidateRecord]:
    """Return every draft made to choose an iteration's seeds, refused ones and rescored ones included.

    Args: the iteration's plan, and the review of its seeds.
    """
    drafts = [*plan.candidates, *plan.superseded, *review.rescored]
    refused = set(plan.superseded)
    ranked_together: dict[tuple[int, str, int], list[Candidate]] = defaultdict(list)
    for draft in drafts:
        ranked_together[draft.prompt_id, draft.fidelity, draft.policy_version].append(draft)
    rank: dict[Candidate, int] = {}
    for group in ranked_together.values():
        # An image without a score comes last.
        group.sort(key=lambda draft: (draft.error is not None, -draft.value, draft.seed_index))
        rank |= {draft: place for place, draft in enumerate(group)}
    prompts = {prompt.prompt_id: prompt.text for prompt in session.runtime.train_prompts}
    return [
        CandidateRecord(
            prompt_id=draft.prompt_id,
            prompt=prompts[draft.prompt_id],
            seed_index=draft.seed_index,
            fidelity=draft.fidelity,
            policy_version=draft.policy_version,
            score=draft.value,
            exact=draft.exact,
            error=draft.error,
            round=draft.round,
            rank=rank[draft],
            kept=draft not in refused and draft.seed_index in plan.seeds.get(draft.prompt_id, ()),
        )
        for draft in drafts
    ]


def sample_images(rolled: Rollout, scores: list[Score]) -> list[SampleImage]:
    """Return thumbnails of the best and the worst judged image of an iteration's first prompts.

    They are the first in the plan, whose order is shuffled. The lowest numbers would be the head of the
    prompt file, which may be sorted by task.
    """
    chosen = list(rolled.plan.seeds)[:GALLERY_PROMPTS]
    of_prompt: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
    for place, (delivered, score) in enumerate(zip(rolled.delivered, scores, strict=True)):
        request = delivered.sample.request
        if score.error is None:
            of_prompt[request.prompt_id].append((-score.value, request.seed_index, place))
    images = []
    for prompt in chosen:
        ranked = sorted(of_prompt[prompt])
        for _, seed, place in (*ranked[:1], *ranked[-1:]):
            image_HWC = rolled.delivered[place].sample.image_HWC
            images.append(SampleImage(prompt, seed, picture_file(image_HWC, _THUMBNAIL_SIDE)))
    return images
