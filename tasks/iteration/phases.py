"""The phases of an iteration, each one call to the runtime, and their commit, as Prefect tasks."""

from __future__ import annotations

import statistics
from collections import defaultdict
from functools import partial

from prefect import task

from gpu_runtime.exploration.measured_iterations import IterationTimes
from gpu_runtime.exploration.plan import Candidate, SeedPlan, plan_to_json
from gpu_runtime.exploration.strategies.strategy import DECIDED, Ahead, TrainingEvidence
from gpu_runtime.fleet.evaluation import Evaluation
from gpu_runtime.fleet.seed_search import SeedReview
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.runtime import Rollout, Trained
from gpu_runtime.scheduling.scores import Score, judged, part_means
from storage.clock import now
from storage.evaluations.quality import mean_figures
from storage.pictures import picture_file
from storage.record.records import (
    JUDGE_USD,
    CandidateRecord,
    Collected,
    EvaluationRecord,
    IterationRecord,
    SampleImage,
    SampleRecord,
)
from storage.record.results import held_out_scores
from storage.record.tables import iteration_rows
from tasks.iteration.session import Session

GALLERY = 12
"""Images of an evaluation to keep for the dashboard: the same prompts and seeds every time."""

GALLERY_PROMPTS = 2
"""Prompts of an iteration whose best and worst images are kept for the dashboard."""

_THUMBNAIL_SIDE = 256
"""The side of a thumbnail in pixels."""


@task(task_run_name="explore {iteration}", persist_result=False)
def explore(
    session: Session, iteration: int, ahead: Ahead | None = None, refused: SeedPlan | None = None
) -> SeedPlan:
    """Choose the seeds of an iteration.

    Args:
        ahead: the strategy's work during the previous iteration's reward and training, if this runs then.
        refused: drafts from such work that the monitor rejected: seeds are redrafted with the current
            weights, in time booked as `redraft`.
    """
    if refused is not None:
        with session.timed("redraft"):
            return session.runtime.explore_anew(refused)
    with session.timed("explore"):
        return session.runtime.explore(iteration, ahead)


@task(task_run_name="rollout {plan.iteration}", persist_result=False)
def rollout(session: Session, plan: SeedPlan, ahead: Ahead | None = None) -> Rollout:
    """Generate the chosen seeds on all devices; scorers judge them meanwhile.

    Args:
        ahead: the next iteration's drafts, begun by devices with nothing left to roll out; None delays them.
    """
    with session.timed("rollout"):
        return session.runtime.rollout(plan, ahead)


@task(task_run_name="reward {rolled.plan.iteration}", persist_result=False)
def reward(session: Session, rolled: Rollout) -> list[Score]:
    """Wait for the last scores of the rollout's images."""
    with session.timed("reward"):
        return session.runtime.reward(rolled)


@task(task_run_name="train {rolled.plan.iteration}", persist_result=False)
def train(session: Session, rolled: Rollout, scores: list[Score]) -> Trained:
    """Take the training steps and publish the weights.

    Args:
        scores: one per sample, in the same order.
    """
    with session.timed("train"):
        return session.runtime.train(rolled, scores)


@task(task_run_name="evaluate {iteration}", persist_result=False)
def evaluate(session: Session, iteration: int) -> Evaluation:
    """Score held-out prompts with the weights that are the run's result after an iteration.

    The first and the last evaluation use all of them, as does one that ended the run before it was extended;
    others use those common to every evaluation.
    """
    session.unfinished.begin("evaluation", iteration)
    runtime = session.runtime
    is_end = iteration == 0 or session.ends_after(iteration)
    with session.timed("evaluate"):
        return runtime.evaluate(runtime.evaluate_prompts if is_end else runtime.compared_prompts)


@task(task_run_name="commit {record.iteration}", persist_result=False)
def commit(session: Session, record: IterationRecord) -> None:
    """Make an iteration durable: one rename publishes its rows and, if due, its checkpoint.

    It may run during the next rollout, which uses the checkpoint's weights.
    """
    iteration, figures = record.iteration, record.metrics
    session.runtime.enter("commit", iteration)
    with session.timed("commit"):
        if iteration % session.config.checkpoint.every == 0 or session.ends_after(iteration):
            rows = iteration_rows(record)
            with session.unfinished.committing("iteration", iteration, rows):
                blobs = session.runtime.blobs(iteration + 1)
                session.checkpoints.save(iteration, blobs, record.state, rows)
        else:
            session.store.commit_iteration(record)
        session.store.compact(record.run_id, before=session.checkpoints.oldest)
        if session.mirror is not None:
            session.mirror.copy_newest()
        session.readers.wake()
    session.on_commit(record)
    session.log.note(
        f"iteration {iteration} of {session.config.iterations}: reward {figures['reward_mean']:.3f}, "
        f"{figures['iteration_s']:.1f} s"
    )


@task(name="record-evaluation", task_run_name="record-evaluation {record.iteration}", persist_result=False)
def record_evaluation(session: Session, record: EvaluationRecord) -> None:
    """Write a held-out evaluation to the record; `tasks.iteration.alarm` responds to its images."""
    session.store.commit_evaluation(record)
    if record.iteration:  # before the first iteration, importing MLflow would slow down the start
        session.readers.wake()


def iteration_record(
    session: Session,
    rolled: Rollout,
    scores: list[Score],
    trained: Trained,
    review: SeedReview,
    started_at: float,
    ended_at: float,
    collected: Collected,
) -> IterationRecord:
    """Return the rows of a finished iteration.

    Args:
        scores: one score per sample, in the same order.
        started_at, ended_at: Unix time in seconds.
        collected: work of devices and judges up to now.
    """
    advantages, counters = trained.advantages, session.runtime.counters
    values = [score.value for score in judged(scores)]
    metrics = {
        "reward_mean": statistics.fmean(values),
        "reward_std": statistics.pstdev(values),
        "exact_share": statistics.fmean(score.exact for score in judged(scores)),
        "scorer_errors": float(sum(score.error is not None for score in scores)),
        **{f"reward_part_{name}": value for name, value in part_means(scores).items()},
        "groups": float(len(rolled.plan.seeds)),
        "groups_dropped": float(advantages.dropped),
        "groups_failed": float(advantages.failed),
        **_training_metrics(trained.report),
        "samples_returned": float(counters.returned),
        "samples_dropped": float(counters.duplicates),
        "commits": float(counters.commits),
        "steps_redone": float(counters.redone_steps),
        "iteration_s": ended_at - started_at,
        "train_beside_s": trained.beside_s,
        "cost_usd": sum(interval.usd for interval in collected.intervals),
        **({JUDGE_USD: collected.judge_usd} if collected.judge_usd else {}),
        **review.figures,
        **session.take_seconds(),
    }
    return IterationRecord(
        run_id=session.run_id,
        iteration=rolled.plan.iteration,
        policy_version=trained.policy_version,
        started_at=started_at,
        ended_at=ended_at,
        metrics=metrics,
        samples=_sample_records(rolled, scores, trained),
        candidates=candidate_records(session, rolled.plan, review),
        sample_images=sample_images(rolled, scores),
        next_plan=plan_to_json(review.next_plan) if review.next_plan is not None else None,
        explorer_state=session.runtime.explorer.state(),
        **collected.of_devices(),
    )


def _training_metrics(report: TrainingReport) -> dict[str, float]:
    metrics = {
        "training_steps": float(report.training_steps),
        "loss": report.loss,
        "kl": report.kl,
        "clip_share": report.clip_share,
        "gradient_norm": report.gradient_norm,
        "ratio_deviation": report.ratio_deviation,
    }
    if report.ratio_mean:
        metrics |= {"ratio_mean": report.ratio_mean, "approx_kl": report.approx_kl}
    if report.pair_accuracy or report.pair_margin:
        metrics |= {"pair_accuracy": report.pair_accuracy, "pair_margin": report.pair_margin}
    if (drafts := report.off_policy) is not None:
        metrics |= {
            "off_policy_samples": float(drafts.samples),
            "off_policy_ratio_spread": drafts.ratio_spread,
            "off_policy_kl": drafts.kl,
            "off_policy_clip_share": drafts.clip_share,
        }
    return metrics


def evaluation_record(
    session: Session,
    evaluation: Evaluation,
    iteration: int,
    started_at: float,
    ended_at: float,
    collected: Collected,
) -> EvaluationRecord:
    """Return the rows of a held-out evaluation.

    Its score covers the prompts common to every evaluation; the first `GALLERY` images of those are kept as
    pictures.

    Args:
        started_at, ended_at: Unix time in seconds.
        collected: work of devices and judges up to now.
    """
    compared = evaluation.of(session.runtime.compared_prompts, session.config.reward.scorer)
    pictured = {sample.request for sample in compared.samples[:GALLERY]}
    return EvaluationRecord(
        session.run_id, iteration, evaluation.policy_version, started_at, ended_at,
        compared.score, compared.exact, evaluation.images(pictured=pictured), part_means(compared.scores),
        mean_figures(compared.figures),
        **collected.of_devices(),
    )  # fmt: skip


def _sample_records(rolled: Rollout, scores: list[Score], trained: Trained) -> list[SampleRecord]:
    # An image without a score comes last.
    by_prompt: dict[int, list[tuple[bool, float, int]]] = defaultdict(list)
    for delivered, score in zip(rolled.delivered, scores, strict=True):
        request = delivered.sample.request
        by_prompt[request.prompt_id].append((score.error is not None, -score.value, request.seed_index))
    rank = {
        (prompt_id, seed): place
        for prompt_id, seeds in by_prompt.items()
        for place, (*_, seed) in enumerate(sorted(seeds))
    }
    group = len(rolled.delivered) // len(rolled.plan.seeds)
    advantages = trained.advantages.value_PG.flatten().tolist()
    kept = trained.advantages.kept_P.repeat(group).tolist()
    explored = rolled.plan.explored_score
    records = []
    for place, (delivered, score) in enumerate(zip(rolled.delivered, scores, strict=True)):
        request = delivered.sample.request
        identity = (request.prompt_id, request.seed_index)
        records.append(
            SampleRecord(
                prompt_id=request.prompt_id,
                prompt=request.prompt,
                seed_index=request.seed_index,
                policy_version=request.policy_version,
                score=score.value,
                exact=score.exact,
                detail=score.detail,
                error=score.error,
                seed_rank=rank[identity],
                explored_score=explored.get(identity),
                advantage=advantages[place] if kept[place] else None,
                worker=delivered.worker,
            )
        )
    return records


def review_seeds(
    session: Session,
    rolled: Rollout,
    scores: list[Score],
    trained: Trained,
    next_plan: SeedPlan | None,
    rolling_since: float,
) -> SeedReview:
    """Review an iteration's seeds, and report news about them and the next ones to the user.

    It records the strategy's decisions from measured times before they take effect.

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
    """Return an iteration's times, without its commit, `rolling_s` after its rollout began."""
    seconds = session.seconds
    return IterationTimes(
        rollout_s=seconds["rollout"],
        judging_s=seconds["reward"],
        train_s=trained.left_s,
        draft_wait_s=seconds["explore_wait"],
        # Untrusted ranks cost this in every iteration; other drafts before a rollout are made once.
        whole_s=rolling_s + seconds.get("redraft", 0.0),
        trained=trained.samples,
        rollers=len({one.worker for one in rolled.delivered}),
        beside_s=trained.beside_s,
    )


def candidate_records(session: Session, plan: SeedPlan, review: SeedReview) -> list[CandidateRecord]:
    """Return every draft made to choose an iteration's seeds, including refused and re-scored ones.

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

    They are the first in the plan, whose order is shuffled; the lowest numbers would be the head of the
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
