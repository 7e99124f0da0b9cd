"""Training on drafts, on local processes: the samples, their ages, losses, resumption, giving it up."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpu_runtime.exploration.plan import SeedPlan
from gpu_runtime.exploration.strategies.strategy import TrainingEvidence
from gpu_runtime.runtime import Rollout, Runtime, Trained
from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.scheduling.scores import Score
from storage.errors import TrainingError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("even_plans")]

# 24 drafts of 4 prompts, evenly: each has more than its group of 4.
SETTINGS = [
    "sampling.batch_size=4",
    "runtime.cluster=local",
    "exploration.strategy=off_policy",
    "exploration.candidates=8",
    "exploration.drafts=24",
    "exploration.stop_with_training=false",
]


def iterate(
    runtime: Runtime, plan: SeedPlan, ahead: bool = True
) -> tuple[Rollout, list[Score], Trained, SeedPlan]:
    """Roll out, reward and train, the last two beside exploring, as the flow does."""
    following = plan.iteration + 1
    drafts = runtime.ahead(following)
    rolled = runtime.rollout(plan, drafts if ahead else None)
    found: list[SeedPlan] = []
    exploring = threading.Thread(target=lambda: found.append(runtime.explore(following, drafts)))
    exploring.start()
    scores = runtime.reward(rolled)
    trained = runtime.train(rolled, scores)
    exploring.join(200)
    assert found
    evidence = TrainingEvidence(trained.report.off_policy, dict)
    review = runtime.review(rolled, scores, found[0], evidence)
    assert review.next_plan is not None
    return rolled, scores, trained, review.next_plan


def rollouts(runtime: Runtime) -> int:
    """Devices' times in state rollout since this was asked last."""
    return sum(interval.state == "rollout" for interval in runtime.collect().intervals)


def bits(rolled: Rollout) -> list[tuple[object, ...]]:
    return [
        (one.sample.request, one.sample.image_HWC.tobytes(), one.sample.trajectory.log_prob_W.tobytes())
        for one in rolled.delivered
    ]


def test_the_chosen_drafts_are_the_samples_and_nothing_is_rolled_out(fresh):
    _, _, first, plan = iterate(fresh, fresh.explore(1))
    assert first.report.off_policy is None
    rollouts(fresh)
    rolled, scores, trained, _ = iterate(fresh, plan)
    assert rollouts(fresh) == 0
    requests = [one.sample.request for one in rolled.delivered]
    assert [(one.prompt_id, one.seed_index) for one in requests] == [
        (prompt, seed) for prompt, seeds in sorted(plan.seeds.items()) for seed in seeds
    ]
    assert {(one.kind, one.policy_version) for one in requests} == {(RequestKind.ROLLOUT, 0)}
    assert rolled.policy_version == 1
    # Their scores are those that chose them.
    for request, score in zip(requests, scores, strict=True):
        assert plan.explored_score[request.prompt_id, request.seed_index] == score.value and score.detail
    assert {one.worker for one in rolled.delivered} <= {"spot-0", "spot-1"}
    figures = trained.report.off_policy
    assert figures is not None and 0 < figures.samples <= 16
    assert 0 < figures.ratio_spread < 0.5
    assert trained.report.ratio_deviation == 0 and trained.policy_version == 2


def test_devices_that_have_nothing_to_draft_beside_training_are_idle(fresh):
    """In a run's last iteration every device loads the weights, and then only the trainers work."""
    _, _, _, plan = iterate(fresh, fresh.explore(1))
    fresh.collect()
    rolled = fresh.rollout(plan)
    fresh.train(rolled, fresh.reward(rolled))
    last = {interval.worker: interval.state for interval in fresh.collect().intervals}
    assert last["spot-0"] == last["spot-1"] == "idle"


def test_a_draft_equals_the_rollout_by_the_same_weights_to_the_bit(fresh):
    ahead = fresh.ahead(2)
    rolled = fresh.rollout(fresh.explore(1), ahead)
    plan = fresh.explore(2, ahead)
    drafts = dict(fresh._search.kept.of(2))
    assert len(drafts) == 16
    fresh._search.kept.forget()
    again = fresh.rollout(plan)  # nothing was trained: the weights are still those of the drafts
    for one in again.delivered:
        request = one.sample.request
        draft = drafts[request.prompt_id, request.seed_index]
        assert draft.sample.request == request
        for name in ("step_W", "before_WSC", "after_WSC", "log_prob_W"):
            ours, theirs = getattr(draft.sample.trajectory, name), getattr(one.sample.trajectory, name)
            assert ours.size and np.array_equal(ours, theirs)
        assert np.array_equal(draft.sample.latents_SC, one.sample.latents_SC)
    assert len(rolled.delivered) == 16


def test_seeds_without_a_draft_are_rolled_out_with_the_weights_of_now(fresh):
    _, _, _, plan = iterate(fresh, fresh.explore(1))
    kept = fresh._search.kept._of[2]
    gone = sorted(kept)[:5]
    for identity in gone:
        del kept[identity]
    rolled, _, trained, _ = iterate(fresh, plan)
    versions = {
        (one.sample.request.prompt_id, one.sample.request.seed_index): one.sample.request.policy_version
        for one in rolled.delivered
    }
    assert {identity for identity, version in versions.items() if version == 1} == set(gone)
    assert {version for identity, version in versions.items() if identity not in gone} == {0}
    # Theirs is the ratio that must be 1.
    assert trained.report.ratio_deviation <= fresh.config.algorithm.ratio_tolerance


def test_samples_of_another_age_are_refused(fresh):
    _, _, _, plan = iterate(fresh, fresh.explore(1))
    rolled = fresh.rollout(plan)
    scores = fresh.reward(rolled)
    fresh._search.kept.forget()
    with pytest.raises(TrainingError, match="is from weights v0; training from v1 accepts v1 to v1"):
        fresh.train(rolled, scores)


def test_what_hurts_is_rolled_out_from_the_next_iteration_on(fresh):
    _, _, _, plan = iterate(fresh, fresh.explore(1))
    falls = {0: dict.fromkeys(range(8), 0.5), 1: {prompt: 0.1 + prompt / 100 for prompt in range(8)}}
    rolled, scores, _, following = iterate(fresh, plan)
    review = fresh.review(rolled, scores, following, TrainingEvidence(None, lambda: falls))
    assert [kind for kind, _ in review.notes] == ["staleness"]
    assert not fresh.explorer.state()["strategy"]["trains_on_drafts"]
    rolled = fresh.rollout(following)
    assert {one.sample.request.policy_version for one in rolled.delivered} == {2}
