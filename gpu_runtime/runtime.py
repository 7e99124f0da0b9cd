"""The only entry to the devices: explore, roll out, reward, train, evaluate, checkpoint.

Each method is one phase of an iteration and knows nothing of Prefect or of the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from gpu_runtime.cluster.protocol import Cluster
from gpu_runtime.cluster.slots import FailedStart
from gpu_runtime.diffusion.samples import GeneratedImage, GeneratedSample
from gpu_runtime.dispatch.devices import Weights
from gpu_runtime.dispatch.given_pairs import given_samples
from gpu_runtime.dispatch.sample_phase import Delivered
from gpu_runtime.exploration.plan import SeedPlan, rollout_requests
from gpu_runtime.exploration.registry import build_explorer
from gpu_runtime.exploration.strategies.strategy import Ahead, TrainingEvidence
from gpu_runtime.fleet.evaluation import Evaluation, evaluate
from gpu_runtime.fleet.fleet import Fleet
from gpu_runtime.fleet.scoring_pool import ScoringPool
from gpu_runtime.fleet.seed_search import SeedReview, SeedSearch
from gpu_runtime.fleet.training_feed import TrainingFeed
from gpu_runtime.learning.advantages import Advantages, check_versions, training_samples
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.learning.weights import check_sync
from gpu_runtime.rewards.guard import refuse_total_failure
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion
from gpu_runtime.scheduling.scores import Score
from gpu_runtime.worker.history import HistoryLog, names_of, new_life
from gpu_runtime.worker.protocol import Worker
from storage.config.run_config import RunConfig
from storage.prompts.files import PromptRecord, compared_prompts, load_run_prompts
from storage.record.records import Collected
from storage.record.run_folder import RunFolder


@dataclass(frozen=True)
class Rollout:
    """The samples of an iteration, ordered by prompt and seed: P prompts of G."""

    plan: SeedPlan
    policy_version: int
    delivered: list[Delivered]

    @property
    def groups(self) -> list[list[Delivered]]:
        """P prompt groups, in the order of their prompts."""
        ordered = sorted(self.delivered, key=lambda one: one.sample.request)
        return [list(group) for _, group in groupby(ordered, lambda one: one.sample.request.prompt_id)]


@dataclass(frozen=True)
class Trained:
    """The training of an iteration.

    Attributes:
        beside_s: part of its seconds before the last score arrived.
        left_s: the other part, without the publishing of the new weights.
    """

    report: TrainingReport
    advantages: Advantages
    policy_version: int
    beside_s: float = 0.0
    left_s: float = 0.0

    @property
    def samples(self) -> int:
        """Number of samples that were trained on."""
        group_size = self.advantages.value_PG.shape[1]
        return int(self.advantages.kept_P.sum()) * group_size if self.report.training_steps else 0


class Runtime:
    """Devices, scorers and the policy of one run.

    Args:
        cluster: cluster on which its processes start. `close` ends those, but not the cluster.
        history: folder of the run's history; None to keep none.
        folder: the run's folder, if this process drives it: rented instances are named in it.

    Attributes:
        compared_prompts: held-out prompts that are in every evaluation.
        explorer: explorer, with its strategy, what it has learned and what it has decided.
        counters: counts of the dispatcher since the start: samples given back or dropped, commits.

    Raises:
        RuntimeFailure: if workers or scorers do not start.
        ConfigurationError, PromptFileError, ModelError: if the configuration cannot be met.
    """

    def __init__(
        self,
        config: RunConfig,
        cluster: Cluster,
        history: Path | None = None,
        folder: RunFolder | None = None,
    ) -> None:
        self.config = config
        self._history = HistoryLog(None if history is None else new_life(history), "driver")
        self.train_prompts, self.evaluate_prompts = load_run_prompts(config)
        self.compared_prompts = compared_prompts(config, self.evaluate_prompts)
        self._train_by_id = {prompt.prompt_id: prompt for prompt in self.train_prompts}
        self.explorer = build_explorer(config, self.train_prompts)
        self.cluster = cluster
        with ExitStack() as started:
            self._fleet = Fleet(cluster, config, self._history, folder)
            started.callback(self._fleet.close)
            sections = config.runtime, config.reward, config.evaluation
            self._scoring = ScoringPool(
                cluster, *sections, self._history.place, self._fleet.look, self._fleet.collector
            )
            started.callback(self._scoring.close)
            # Both load at the same time; each takes seconds of imports.
            self._fleet.await_ready()
            self._scoring.await_ready()
            shared = self._fleet, self._scoring, self._use_training_weights
            self._search = SeedSearch(config, self.explorer, self.train_prompts, *shared)
            self._feed = TrainingFeed(
                config.algorithm, config.reward.signal, self._fleet.trainers, self._fleet.enter
            )
            self.counters = self._fleet.counters
            self._current = self._fleet.trainers.publish(WeightsVersion(0))
            self._started = started.pop_all()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def policy_version(self) -> int:
        """Version of the trained weights: the number of times that training has changed them."""
        return self._current.version.policy_version

    @property
    def lost_workers(self) -> list[str]:
        """Workers that died since the start, after they had joined."""
        return list(self._fleet.lost)

    @property
    def failed_starts(self) -> list[FailedStart]:
        """Workers that died while loading since the start."""
        return list(self._fleet.failed_starts)

    @property
    def lost_standbys(self) -> list[str]:
        """Reports of the standbys that died since the start, in words."""
        return list(self._fleet.standbys.lost)

    def enter(self, phase: str, iteration: int) -> None:
        """Record in the history that an iteration enters a phase; each method records its phase itself."""
        self._history.note("phase", phase=phase, iteration=iteration)

    def ahead(self, iteration: int) -> Ahead | None:
        """Return the work beside the previous training that chooses an iteration's seeds; None for none.

        Call it before the previous iteration is rolled out: `rollout` begins the work, `explore` ends it.
        """
        return self.explorer.strategy.ahead(iteration, self._search)

    def explore(self, iteration: int, ahead: Ahead | None = None) -> SeedPlan:
        """Choose prompts and seeds of an iteration, as exploration.strategy decides.

        With the result of the method `ahead` for this iteration, it may run in another thread while `train`
        does; drafts of a training window then end with the training steps, or soon after. With None, once the
        previous iteration is over, it may draft on all devices, trainers included, so nothing may run beside.
        """
        self.enter("explore", iteration)
        if ahead is not None:
            return ahead.choose()
        return self.explorer.strategy.before_rollout(iteration, self._search)

    def explore_anew(self, refused: SeedPlan) -> SeedPlan:
        """Draft a refused plan's seeds again, with the current weights; the new plan records the old drafts.

        All devices draft, including the trainers, so nothing may run beside it.
        """
        return self.explorer.strategy.redraft(refused.iteration, self._search).in_place_of(refused)

    def rollout(self, plan: SeedPlan, ahead: Ahead | None = None) -> Rollout:
        """Generate the planned seeds with the current weights on all devices; scorers judge them meanwhile.

        Drafts to train on are used as they are: their seeds are not generated again. So are pairs of
        the prompt file. Devices that find nothing more to roll out begin the drafts of `ahead`; with
        None they idle.
        """
        self.enter("rollout", plan.iteration)
        drafts = self._search.kept.of(plan.iteration)
        wanted = rollout_requests(plan, self._train_by_id, self.config.seed, self.policy_version)
        encode = partial(self._fleet.trainers.ask_leader, Worker.encode_pictures)
        ready = {**drafts, **given_samples(wanted, self._train_by_id, encode)}
        # By prompts, in the order of training: the trainers begin with the first groups.
        requests = sorted(one for one in wanted if (one.prompt_id, one.seed_index) not in ready)
        drafted = [replace(one.sample.request, kind=RequestKind.EXPLORE) for one in drafts.values()]
        self._history.note("drafted", requests=names_of(drafted))
        self._feed.expect(wanted, self.policy_version)
        for one in ready.values():
            if one.score is not None:
                self._feed.note(one.sample, one.score)
        left = self.config.iterations - plan.iteration + 1
        strategy = self.explorer.strategy
        used_beside = strategy.used_beside_training(self.config.runtime)
        self._fleet.decide_capacity(len(requests), left, self._feed.time, used_beside)
        self._use_training_weights()
        self._fleet.register_trainers(self._current, strategy.spot_trains)
        window = self._search.new_window(plan, self._current.version)
        delivered = self._fleet.generate(
            requests, self._current, self._judge, (lambda: None) if ahead is None else ahead.begin, self._feed
        )
        window.open(time.monotonic())  # devices are free to draft
        rolled = zip(requests, delivered, strict=True)
        made = {(one.prompt_id, one.seed_index): done for one, done in rolled}
        identities = [(one.prompt_id, one.seed_index) for one in wanted]
        samples = [ready.get(identity) or made[identity] for identity in identities]
        return Rollout(plan, self.policy_version, samples)

    def reward(self, rollout: Rollout) -> list[Score]:
        """Wait until a rollout is judged, and return its scores in the order of its samples.

        Prompt groups are given to the trainers as they are judged (`TrainingFeed`).

        Raises:
            RewardError: if the scorer failed on every image.
            RuntimeFailure: if scorers keep dying.
            TrainingError: if a sample has weights of a forbidden version.
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
        """Compute advantages, take training steps on the training devices, and publish the new weights.

        The window of the parallel exploration closes when the training steps are done.

        Raises:
            TrainingError: if a sample has weights of a forbidden version, the first ratio is off, a loss
                is not finite, or nothing changed.
            RewardError: if the scorer failed in every prompt group.
        """
        self.enter("train", rollout.plan.iteration)
        try:
            generated = [delivered.sample for delivered in rollout.delivered]
            self._check_versions(rollout)
            algorithm, signal = self.config.algorithm, self.config.reward.signal
            advantages, samples = training_samples(generated, scores, algorithm, signal, self.policy_version)
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
        time = self._feed.time
        return Trained(report, advantages, self.policy_version, time.beside_s, time.whole_s - time.beside_s)

    def review(
        self,
        rollout: Rollout,
        scores: Sequence[Score],
        next_plan: SeedPlan | None,
        evidence: TrainingEvidence | None = None,
    ) -> SeedReview:
        """Return an iteration's evidence on its seeds, once `train` and `explore` have ended."""
        made = [delivered.sample.request for delivered in rollout.delivered]
        scored = {(one.prompt_id, one.seed_index): score for one, score in zip(made, scores, strict=True)}
        return self._search.review(rollout.plan, scored, next_plan, self.policy_version, evidence)

    def evaluate(self, prompts: Sequence[PromptRecord]) -> Evaluation:
        """Generate, score and measure held-out images by the ODE, with the weights that are the result."""
        with self._fleet.evaluating():
            version = WeightsVersion(self.policy_version, averaged=True)
            weights = self._fleet.trainers.publish_average(version) or self._current
            return evaluate(self.config, prompts, weights, self._fleet, self._scoring)

    def blobs(self, iteration: int | None = None) -> dict[str, bytes]:
        """Return the trainer's whole state, with drafts to train on in an iteration, if one is given."""
        self._use_training_weights()
        drafts = {} if iteration is None else self._search.kept.blobs(iteration)
        return self._fleet.trainers.state(Worker.blobs) | drafts

    def restore(
        self, blobs: Mapping[str, bytes], policy_version: int, explorer_state: Mapping[str, Any] | None = None
    ) -> None:
        """Continue from the state of a checkpoint, and of the exploration, if it had one.

        Args:
            blobs: result of `blobs`.
            policy_version: version of the restored weights.
            explorer_state: state of the exploration; None if it had none.
        """
        self._search.forget()
        self._feed.abandon()
        if explorer_state is not None:
            self.explorer.restore(explorer_state)
            self._search.kept.restore(blobs)
        self._fleet.trainers.ask(Worker.restore, dict(blobs))
        self._fleet.forget_weights()
        self._current = self._fleet.trainers.publish(WeightsVersion(policy_version))

    def return_to(self, blobs: Mapping[str, bytes]) -> None:
        """Return the trainer to an earlier state of this run, as the next policy version.

        The state of exploration stays; drafts of the abandoned weights are dropped.
        """
        state = self.explorer.state()
        trainer = {name: blob for name, blob in blobs.items() if name.endswith(".safetensors")}
        self.restore(trainer, self.policy_version + 1)
        self.explorer.restore(state)

    def set_kl_weight(self, weight: float) -> None:
        """Train with another weight of the KL divergence from the reference policy from now on."""
        self._use_training_weights()
        self._fleet.trainers.set_kl_weight(weight)

    def collect(self) -> Collected:
        """Return the data on devices and judges since the last call, up to one moment."""
        return self._fleet.collector.close()

    def so_far(self) -> Collected:
        """Return the paid work since the last `collect`, which the next one returns with all else."""
        times = self._fleet.accounts.so_far()
        with self._fleet.collector.writing() as since:
            return replace(
                since, intervals=times.intervals, paid_time=times.paid_time,
                device_events=list(since.device_events), groups=list(since.groups),
            )  # fmt: skip

    def on_look(self, call: Callable[[], None]) -> None:
        """Call a function about twice a second, or after each chunk of denoising steps, in any thread."""
        self._fleet.on_look = call

    def device_kinds(self) -> set[str]:
        """Return the hardware of the workers that have joined so far: `cpu`, or names of GPUs."""
        return self._fleet.accounts.kinds()

    def close(self) -> None:
        """End all processes of the runtime; the cluster stays."""
        self._search.abandon()
        self._started.close()
        self._history.note("closed")
        self._history.close()

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

    def _use_training_weights(self) -> Weights:
        """Give the trainers their own weights back after they generated with the average; return them."""
        if not self._fleet.trainers.holds(self._current.version):
            self._fleet.trainers.use_training_weights(self._current.version)
        return self._current
