"""The phases of an iteration as Prefect tasks; each asks the runtime for one thing."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from gpu_runtime.exploration.plan import SeedPlan
from gpu_runtime.exploration.strategies.strategy import Ahead
from gpu_runtime.fleet.evaluation import Evaluation
from gpu_runtime.runtime import Rollout, Trained
from gpu_runtime.scheduling.scores import Score
from tasks.iteration.session import Session


@task(name="explore", task_run_name="explore {iteration}", cache_policy=NO_CACHE, persist_result=False)
def explore(
    session: Session, iteration: int, ahead: Ahead | None = None, refused: SeedPlan | None = None
) -> SeedPlan:
    """Choose the seeds of an iteration.

    Args:
        ahead: the strategy's work beside reward and training of the previous iteration, where this runs then.
        refused: such drafts, which the monitor rejected: seeds are drafted again with the current weights,
            in time that is booked as `redraft`.
    """
    if refused is not None:
        with session.timed("redraft"):
            return session.runtime.explore_anew(refused)
    with session.timed("explore"):
        return session.runtime.explore(iteration, ahead)


@task(name="rollout", task_run_name="rollout {plan.iteration}", cache_policy=NO_CACHE, persist_result=False)
def rollout(session: Session, plan: SeedPlan, ahead: Ahead | None = None) -> Rollout:
    """Generate the chosen seeds on all devices; scorers judge them meanwhile.

    Args:
        ahead: next iteration's drafts, begun by devices with nothing left to roll out; None lets them wait.
    """
    with session.timed("rollout"):
        return session.runtime.rollout(plan, ahead)


@task(
    name="reward", task_run_name="reward {rolled.plan.iteration}", cache_policy=NO_CACHE, persist_result=False
)
def reward(session: Session, rolled: Rollout) -> list[Score]:
    """Wait for the last scores of the rollout's images."""
    with session.timed("reward"):
        return session.runtime.reward(rolled)


@task(
    name="train", task_run_name="train {rolled.plan.iteration}", cache_policy=NO_CACHE, persist_result=False
)
def train(session: Session, rolled: Rollout, scores: list[Score]) -> Trained:
    """Take the training steps and publish the weights.

    Args:
        scores: one per sample, in the same order.
    """
    with session.timed("train"):
        return session.runtime.train(rolled, scores)


@task(name="evaluate", task_run_name="evaluate {iteration}", cache_policy=NO_CACHE, persist_result=False)
def evaluate(session: Session, iteration: int) -> Evaluation:
    """Score held-out prompts with the moving average of the weights after an iteration.

    The first and the last evaluation have all of them, the others those that every evaluation has.
    """
    runtime = session.runtime
    is_end = iteration in (0, session.last_iteration)
    with session.timed("evaluate"):
        return runtime.evaluate(runtime.evaluate_prompts if is_end else runtime.compared_prompts)
