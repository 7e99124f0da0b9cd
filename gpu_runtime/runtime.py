"""The one door to the devices: explore, roll out, reward, train, evaluate, checkpoint.

Each method is one phase of an iteration and knows nothing of Prefect or of the database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from gpu_runtime.cluster.protocol import Cluster
from gpu_runtime.diffusion.samples import GeneratedImage, GeneratedSample
from gpu_runtime.dispatch.devices import Weights
from gpu_runtime.dispatch.evaluation import Evaluation, evaluate
from gpu_runtime.dispatch.sample_phase import Delivered
from gpu_runtime.dispatch.seed_search import SeedReview, SeedSearch
from gpu_runtime.exploration.plan import SeedPlan, rollout_requests
from gpu_runtime.exploration.registry import build_explorer
from gpu_runtime.exploration.strategies.strategy import Ahead, TrainingEvidence
from gpu_runtime.fleet.fleet import Fleet
from gpu_runtime.fleet.scoring_pool import ScoringPool
from gpu_runtime.fleet.slots import FailedStart
from gpu_runtime.fleet.training_feed import TrainingFeed
from gpu_runtime.learning.advantages import Advantages
from gpu_runtime.learning.groups import check_versions, training_samples
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.learning.weights import check_sync
from gpu_runtime.rewards.guard import refuse_total_failure
from gpu_runtime.rewards.protocol import Score
from gpu_runtime.scheduling.pull_scheduler import Counters
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion
from gpu_runtime.worker.history_log import HistoryLog, names_of, new_life
from gpu_runtime.worker.protocol import Worker
from storage.config.run_config import RunConfig
from storage.prompts.files import PromptRecord
from storage.prompts.of_a_run import compared_prompts, load_run_prompts
from storage.record.records import Collected


@dataclass(frozen=True)
class Rollout:
    """An iteration's samples, ordered by prompt and seed: P prompts of G."""

    plan: SeedPlan
    policy_version: int
    delivered: list[Delivered]

    @property
    def prompt_count(self) -> int:
        """Prompts P."""
        return len(self.plan.seeds)

    @property
    def groups(self) -> list[list[Delivered]]:
        """The P prompt groups, in the order of their prompts."""
        ordered = sorted(self.delivered, key=lambda one: one.sample.request)
        return [list(group) for _, group in groupby(ordered, lambda one: one.sample.request.prompt_id)]


@dataclass(frozen=True)
class Trained:
    """An iteration's training.

    Attributes:
        report: of its training steps.
        advantages: that it used.
        policy_version: of the new weights.
        beside_s: seconds of it that passed before the last score was there.
    """

    report: TrainingReport
    advantages: Advantages
    policy_version: int
    beside_s: float = 0.0


class Runtime:
    """Devices, scorers and the policy of one run.

    Args:
        config: the run's configuration.
        cluster: where its processes are started. `close` ends those, and leaves the cluster to its builder.
        history: folder of the run's history, where it is to keep one.

    Attributes:
        train_prompts: that it rolls out.
        evaluate_prompts: held-out ones, all of them.
        compared_prompts: those of them that every evaluation has.

    Raises:
        RuntimeFailure: if workers or scorers do not start.
        ConfigurationError, PromptFileError, ModelError: if the configuration cannot be met.
    """

    def __init__(self, config: RunConfig, cluster: Cluster, history: Path | None = None) -> None:
        self.config = config
        self._history = HistoryLog(None if history is None else new_life(history), "driver")
        self.train_prompts, self.evaluate_prompts = load_run_prompts(config)
        self.compared_prompts = compared_prompts(config, self.evaluate_prompts)
        self._train_by_id = {prompt.prompt_id: prompt for prompt in self.train_prompts}
        self._explorer = build_explorer(config, self.train_prompts)
        self._cluster = cluster
        with ExitStack() as started:
            self._fleet = Fleet(cluster, config, self._history)
            started.callback(self._fleet.close)
            self._scoring = ScoringPool(
                cluster, config, self._history.place, self._fleet.look, self._fleet.collector
            )
            started.callback(self._scoring.close)
            # Both load at the same time; each takes seconds of imports.
            self._fleet.await_ready()
            self._scoring.await_ready()
            self._search = SeedSearch(
                config, self._explorer, self.train_prompts, self._fleet, self._scoring, self._training_weights
            )
            self._feed = TrainingFeed(config, self._fleet.trainers, self._fleet.enter)
            self._current = self._fleet.trainers.publish(WeightsVersion(0))
            self._started = started.pop_all()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def policy_version(self) -> int:
        """Version of the trained weights: how often training has changed them."""
        return self._current.version.policy_version

    @property
    def lost_workers(self) -> list[str]:
        """Workers that died since the start, after they had joined."""
        return list(self._fleet.lost)

    @property
    def failed_starts(self) -> list[FailedStart]:
        """Workers that died since the start while they loaded."""
        return list(self._fleet.failed_starts)

    @property
    def lost_standbys(self) -> list[str]:
        """What happened to each standby that died since the start, in words."""
        return list(self._fleet.standbys.lost)

    @property
    def counters(self) -> Counters:
        """What the dispatcher has counted since the start: samples given back or dropped, commits."""
        return self._fleet.counters

    def enter(self, phase: str, iteration: int) -> None:
        """Note in the history that an iteration enters a phase; each method notes its own."""
        self._history.note("phase", phase=phase, iteration=iteration)

    def ahead(self, iteration: int) -> Ahead | None:
        """Return what to do beside the training before an iteration to choose its seeds; None for nothing.

        Call it before the iteration before is rolled out: `rollout` begins the work, `explore` does the rest.

        Args:
            iteration: the iteration that will roll the seeds out.
        """
        return self._explorer.strategy.ahead(iteration, self._search)

    def explore(self, iteration: int, ahead: Ahead | None = None) -> SeedPlan:
        """Choose prompts and seeds of an iteration, as exploration.strategy says.

        With `ahead` it may run in another thread while `train` does; drafts of a training window then end
        with the training steps, or soon after. Otherwise it may draft on all devices, the trainers too, so
        nothing may run beside it.

        Args:
            iteration: the iteration that will roll the seeds out.
            ahead: that `ahead` gave for it; None where the iteration before is over.
        """
        self.enter("explore", iteration)
        if ahead is not None:
            return ahead.choose()
        return self._explorer.strategy.before_rollout(iteration, self._search)

    def explore_anew(self, refused: SeedPlan) -> SeedPlan:
        """Draft the seeds of a plan whose drafts are not trusted again: now, with the current weights.

        All devices draft, the trainers too, so nothing may run beside it.

        Args:
            refused: the plan; the new one keeps a record of its drafts.
        """
        return self._explorer.strategy.redraft(refused.iteration, self._search).in_place_of(refused)

    def rollout(self, plan: SeedPlan, ahead: Ahead | None = None) -> Rollout:
        """Generate the planned seeds with the current weights on all devices; scorers judge them meanwhile.

        Drafts that are trained on are taken as they are: their seeds are not generated again.

        Args:
            plan: the seeds.
            ahead: the next iteration's; devices that find nothing more to roll out begin its drafts. None
                lets them be idle.
        """
        self.enter("rollout", plan.iteration)
        drafts = self._search.kept.of(plan.iteration)
        wanted = rollout_requests(plan, self._train_by_id, self.config.seed, self.policy_version)
        # By prompts, as they are trained on: what trains begins with the first groups.
        requests = sorted(one for one in wanted if (one.prompt_id, one.seed_index) not in drafts)
        drafted = [replace(one.sample.request, kind=RequestKind.EXPLORE) for one in drafts.values()]
        self._history.note("drafted", requests=names_of(drafted))
        self._feed.expect(wanted, self.policy_version)
        for one in drafts.values():
            if one.score is not None:
                self._feed.note(one.sample, one.score)
        left = self.config.iterations - plan.iteration + 1
        self._fleet.decide_capacity(len(requests), left, self._feed.time)
        self._use_training_weights()
        self._search.new_window(plan, self._current.version)
        delivered = self._fleet.generate(
            requests,
            self._current,
            self._judge,
            (lambda: None) if ahead is None else ahead.begin,
            self._feed,
        )
        self._search.open_window()
        rolled = zip(requests, delivered, strict=True)
        made = {(one.prompt_id, one.seed_index): done for one, done in rolled}
        identities = [(one.prompt_id, one.seed_index) for one in wanted]
        samples = [drafts.get(identity) or made[identity] for identity in identities]
        return Rollout(plan, self.policy_version, samples)

    def reward(self, rollout: Rollout) -> list[Score]:
        """The scores of a rollout in the order of its samples, once scorers have judged the last of them.

        Prompt groups are given to the trainers as they are judged (`TrainingFeed`).

        Raises:
            RewardError: if the scorer failed on every image.
            RuntimeFailure: if scorers die again and again.
            TrainingError: if a sample is of weights that it must not be of.
        """
        self.enter("reward", rollout.plan.iteration)
        try:
            self._check_versions(rollout)
            scores: dict[SampleRequest, Score] = {}
            for group in rollout.groups:
                judged = self._scoring.wait_for([one.score for one in group if one.score is not None])
                scores |= {one.sample.request: score for one, score in zip(group, judged, strict=True)}
                self._feed.give()
            found = [scores[one.sample.request] for one in rollout.delivered]
            refuse_total_failure(self.config.reward.scorer, found)
            return found
        except BaseException:
            self._search.abandon()
            raise

    def train(self, rollout: Rollout, scores: Sequence[Score]) -> Trained:
        """Advantages, training steps on the devices that train, and the new weights' publication.

        The window of the exploration beside it closes when the training steps are done.

        Raises:
            TrainingError: if a sample is of weights that it must not be of, the first ratio is off, a loss
                is not finite, or nothing changed.
            RewardError: if the scorer failed in every prompt group.
        """
        self.enter("train", rollout.plan.iteration)
        try:
            generated = [delivered.sample for delivered in rollout.delivered]
            self._check_versions(rollout)
            advantages, samples = training_samples(generated, scores, self.config, self.policy_version)
            self._use_training_weights()
            report = self._feed.finish(samples)
        except BaseException:
            self._search.abandon()
            raise
        self._search.close_window()
        if report.training_steps:
            before = self._current.digest
            self._current = self._fleet.trainers.publish(WeightsVersion(self.policy_version + 1))
            check_sync(self._current.digest, before)
        return Trained(report, advantages, self.policy_version, self._feed.time.beside_s)

    def review(
        self,
        rollout: Rollout,
        scores: Sequence[Score],
        next_plan: SeedPlan | None,
        evidence: TrainingEvidence | None = None,
    ) -> SeedReview:
        """What an iteration has shown of its seeds, once both `train` and `explore` have ended.

        Args:
            rollout: the iteration's samples.
            scores: their scores.
            next_plan: what `explore` has chosen meanwhile for the next iteration.
            evidence: of its training.
        """
        made = [delivered.sample.request for delivered in rollout.delivered]
        scored = {(one.prompt_id, one.seed_index): score for one, score in zip(made, scores, strict=True)}
        return self._search.review(rollout.plan, scored, next_plan, self.policy_version, evidence)

    def explorer_state(self) -> dict[str, Any]:
        """What exploration has learned, as JSON values, for a checkpoint."""
        return self._explorer.state()

    def evaluate(self, prompts: Sequence[PromptRecord]) -> Evaluation:
        """Held-out images by the ODE with the moving average, their scores, and what they look like.

        Args:
            prompts: some of `evaluate_prompts`, or all.
        """
        weights = self._current
        if self.config.optimizer.ema_decay > 0 and self.policy_version > 0:  # before, it is the same
            weights = self._fleet.trainers.publish_average(WeightsVersion(self.policy_version, averaged=True))
        return evaluate(self.config, prompts, weights, self._fleet, self._scoring)

    def blobs(self, iteration: int | None = None) -> dict[str, bytes]:
        """The trainer's complete state, for a checkpoint.

        Args:
            iteration: that follows: the drafts that it will be trained on are saved, too. None for no drafts.
        """
        self._use_training_weights()
        drafts = {} if iteration is None else self._search.kept.blobs(iteration)
        return self._fleet.trainers.ask(Worker.blobs) | drafts

    def restore(
        self, blobs: Mapping[str, bytes], policy_version: int, explorer_state: Mapping[str, Any] | None = None
    ) -> None:
        """Go on from a checkpoint's state.

        Args:
            blobs: what `blobs` gave.
            policy_version: of the restored weights.
            explorer_state: of the exploration, where it had one.
        """
        self._search.forget()
        self._feed.abandon()
        if explorer_state is not None:
            self._explorer.restore(explorer_state)
            self._search.kept.restore(blobs)
        self._fleet.trainers.ask(Worker.restore, dict(blobs))
        self._fleet.forget_weights()
        self._current = self._fleet.trainers.publish(WeightsVersion(policy_version))

    def return_to(self, blobs: Mapping[str, bytes]) -> None:
        """Put the trainer into an earlier state of this run, as the next policy version.

        What exploration has learned stays; drafts of the weights that are given up are dropped.

        Args:
            blobs: of a checkpoint.
        """
        state = self.explorer_state()
        trainer = {name: blob for name, blob in blobs.items() if name.endswith(".safetensors")}
        self.restore(trainer, self.policy_version + 1)
        self._explorer.restore(state)

    def set_kl_weight(self, weight: float) -> None:
        """Train with another weight of the KL to the reference policy from now on."""
        self._use_training_weights()
        self._fleet.trainers.ask(Worker.set_kl_weight, weight)

    def collect(self) -> Collected:
        """Return what devices and judges did since the last call, states and paid time up to one moment."""
        return self._fleet.collector.close()

    def device_kinds(self) -> set[str]:
        """What the workers that have joined so far compute on: `cpu`, or names of GPUs."""
        return self._fleet.accounts.kinds()

    def needed_processes(self) -> dict[str, int]:
        """Processes that this one cannot outlive, name -> pid."""
        return self._cluster.needed_processes()

    def close(self) -> None:
        """End all processes of the runtime; the cluster stays."""
        self._search.abandon()
        self._started.close()
        self._history.note("closed")
        self._history.close()

    def _training_weights(self) -> Weights:
        """Return the current weights, which the trainers hold then."""
        self._use_training_weights()
        return self._current

    def _check_versions(self, rollout: Rollout) -> None:
        """Refuse samples that training must not learn from."""
        oldest = self.policy_version - bool(self._search.kept.of(rollout.plan.iteration))
        check_versions([one.sample for one in rollout.delivered], self.policy_version, oldest)

    def _judge(self, images: Sequence[GeneratedImage]) -> list[Future[Score]]:
        """Let scorers judge rollouts, which are trained on once they are judged."""
        scores = self._scoring.judge(images, self._train_by_id)
        for image, score in zip(images, scores, strict=True):
            if isinstance(image, GeneratedSample):
                self._feed.note(image, score)
        return scores

    def _use_training_weights(self) -> None:
        """Give the trainers their own weights back after they generated with the average."""
        if not self._fleet.trainers.holds(self._current.version):
            self._fleet.trainers.use_training_weights(self._current.version)
