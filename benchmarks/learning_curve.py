"""One learning curve of the bare loop with exploration: one process, no Ray, no Prefect.

The drafts are made in turn with the training that they would run beside, and every number follows from
its identity, so a curve is that of a live run with the same drafts whose staleness monitor never refuses
them; its re-scores are not made. Devices are a model: each part's
seconds are measured here on one core and placed on a fleet by `critical_path_s`.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from benchmarks.allocation_share import captured, found_by_budget
from gpu_runtime.diffusion.sampler import GeneratedSample
from gpu_runtime.exploration.draft_planner import Draft, DraftPlanner
from gpu_runtime.exploration.explorer import DraftTiming
from gpu_runtime.exploration.fidelity import FULL
from gpu_runtime.exploration.monitor import compare
from gpu_runtime.exploration.plan import Candidate, SeedPlan
from gpu_runtime.exploration.registry import build_explorer
from gpu_runtime.learning.groups import training_samples
from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.protocol import Score
from gpu_runtime.rewards.registry import build_scorer
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.prompts.of_a_run import load_run_prompts

_OWN, _AVERAGE = WeightsVersion(0), WeightsVersion(0, averaged=True)
"""There is one worker, which always has the newest."""


@dataclass
class Curve:
    """What a run leaves.

    Attributes:
        iterations, score, exact: held-out evaluations and the iterations that they follow.
        spearman, kept_overlap, captured: where the whole pool was judged with fresh weights too.
        found: there too, by budget as a share of all candidates: what share of the oracle's spread the bandit
            and an even division find on that table of fresh scores, with the same drafts and history.
        rollout_s, score_s, explore_s, train_s: CPU seconds of one core, one entry an iteration; other work on
            the machine does not count.
        drafts, rollouts: how many, one entry an iteration.
        reward: mean of what is learned from, one entry an iteration.
        variance_rollout: mean variance of the groups that were trained on.
        dropped: groups without gradient.
    """

    iterations: list[int] = field(default_factory=list)
    score: list[float] = field(default_factory=list)
    exact: list[float] = field(default_factory=list)
    spearman: list[float] = field(default_factory=list)
    kept_overlap: list[float] = field(default_factory=list)
    captured: list[float] = field(default_factory=list)
    found: list[dict[str, tuple[float, float]]] = field(default_factory=list)
    rollout_s: list[float] = field(default_factory=list)
    score_s: list[float] = field(default_factory=list)
    explore_s: list[float] = field(default_factory=list)
    train_s: list[float] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    rollouts: list[int] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    variance_rollout: list[float] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


class LearningCurve:
    """A run of the bare loop.

    Args:
        config: the run's configuration; `exploration.strategy` says when drafts are made, and
            `exploration.drafts` how many (0: every candidate).
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        train, self._held_out = load_run_prompts(config)
        self._by_id = {prompt.prompt_id: prompt for prompt in train}
        self._explorer = build_explorer(config, train)
        if self._explorer.trains_on_drafts:
            raise ConfigurationError(
                f"exploration.strategy is {config.exploration.strategy}, which trains on its drafts: this "
                "loop rolls every seed out; set exploration.strategy=stale"
            )
        self._scorer = build_scorer(config.reward)
        self._worker = DeviceWorker(config, trains=True)
        self._worker.use_training_weights(_OWN)
        self._before = self._explorer.state()
        self.curve = Curve()

    def run(self, iterations: int, evaluate_every: int, measure_every: int = 0) -> Curve:
        """Train; evaluate at the start and every so often.

        Args:
            iterations: how many.
            evaluate_every: iterations between held-out evaluations.
            measure_every: iterations between judging the whole pool with fresh weights; 0 never.
        """
        timing = self._explorer.timing
        self._evaluate(0)
        plan = self._explorer.plain(1)
        for iteration in range(1, iterations + 1):
            self.curve.explore_s.append(0.0)
            if timing is DraftTiming.BEFORE_ROLLOUT:
                plan = self._explore(iteration)
            samples, scores = self._roll_out(plan)
            if measure_every and plan.candidates and iteration % measure_every == 0:
                self._measure(plan)
            # Beside training in the live system: the weights are those of this rollout.
            following = self._explore(iteration + 1) if timing is DraftTiming.TRAINING_WINDOW else None
            self._train(plan, samples, scores)
            plan = following or self._explorer.plain(iteration + 1)
            if iteration % evaluate_every == 0:
                self._evaluate(iteration)
        return self.curve

    def _generate(
        self, kind: RequestKind, iteration: int, seeds: list[tuple[int, int]]
    ) -> tuple[list[GeneratedSample], list[Score], float]:
        """Samples, their scores and the seconds that judging took."""
        requests = [
            SampleRequest(
                kind, self.config.seed, iteration, prompt, seed, 0, self._by_id[prompt].text,
                source=self._by_id[prompt].source,
            )
            for prompt, seed in seeds
        ]  # fmt: skip
        samples = self._worker.generate(requests)
        start = time.process_time()
        prompts = [self._by_id[prompt] for prompt, _ in seeds]
        scores = score_each(self._scorer, [sample.image_HWC for sample in samples], prompts)
        return samples, scores, time.process_time() - start

    def _explore(self, iteration: int) -> SeedPlan:
        self._before = self._explorer.state()
        start = time.process_time()
        planner = self._explorer.begin(iteration, self.config.exploration.drafts or None)
        made: list[Candidate] = []
        waiting: list[tuple[Draft, Score]] = []
        # As live: a round is planned while the one before it is being judged.
        while drafts := planner.next_round():
            self._observe(planner, waiting)
            seeds = [(draft.prompt_id, draft.seed_index) for draft in drafts]
            _, scores, _ = self._generate(RequestKind.EXPLORE, iteration, seeds)
            waiting = list(zip(drafts, scores, strict=True))
            made += [
                Candidate(d.prompt_id, d.seed_index, FULL, 0, s.value, s.exact, s.error, planner.round_of(d))
                for d, s in waiting
            ]
        self._observe(planner, waiting)
        plan = self._explorer.finish(iteration, planner, made)
        self.curve.explore_s[-1] += time.process_time() - start
        self.curve.drafts.append(len(made))
        return plan

    def _observe(self, planner: DraftPlanner, judged: list[tuple[Draft, Score]]) -> None:
        for draft, score in judged:
            planner.observe(draft, None if score.error is not None else self._explorer.signal(score))

    def _roll_out(self, plan: SeedPlan) -> tuple[list[GeneratedSample], list[Score]]:
        start = time.process_time()
        seeds = [(prompt, seed) for prompt, chosen in sorted(plan.seeds.items()) for seed in chosen]
        samples, scores, score_s = self._generate(RequestKind.ROLLOUT, plan.iteration, seeds)
        self.curve.rollout_s.append(time.process_time() - start - score_s)
        self.curve.score_s.append(score_s)
        self.curve.rollouts.append(len(samples))
        signal = np.array([self._explorer.signal(score) for score in scores])
        self.curve.reward.append(float(signal.mean()))
        self.curve.variance_rollout.append(float(signal.reshape(len(plan.seeds), -1).var(axis=1).mean()))
        return samples, scores

    def _train(self, plan: SeedPlan, samples: list[GeneratedSample], scores: list[Score]) -> None:
        start = time.process_time()
        advantages, kept = training_samples(samples, scores, self.config)
        self._worker.train(kept)
        self.curve.dropped.append(advantages.dropped)
        self.curve.train_s.append(time.process_time() - start)

    def _evaluate(self, iteration: int) -> None:
        if self.config.optimizer.ema_decay > 0 and iteration > 0:
            self._worker.load_weights(_AVERAGE, self._worker.average_weights())
        else:
            self._worker.use_training_weights(_AVERAGE)
        shown = [
            (prompt, seed)
            for prompt in self._held_out
            for seed in range(self.config.evaluation.images_per_prompt)
        ]
        # The same noise for every run seed: curves differ by what was learned alone.
        requests = [
            SampleRequest(
                RequestKind.EVALUATE, 0, 0, prompt.prompt_id, seed, 0, prompt.text, averaged=True,
                source=prompt.source,
            )
            for prompt, seed in shown
        ]  # fmt: skip
        images = [sample.image_HWC for sample in self._worker.generate(requests)]
        scores = score_each(self._scorer, images, [prompt for prompt, _ in shown])
        self._worker.use_training_weights(_OWN)
        self.curve.iterations.append(iteration)
        self.curve.score.append(statistics.fmean(score.value for score in scores))
        self.curve.exact.append(statistics.fmean(score.exact for score in scores))

    def _measure(self, plan: SeedPlan) -> None:
        """Judge all candidates with the rollout's weights: ranks, and what an oracle would have kept."""
        settings, group = self.config.exploration, self.config.algorithm.group_size
        prompts = self._explorer.prompts(plan.iteration)
        seeds = [(prompt, seed) for prompt in prompts for seed in range(settings.candidates)]
        _, scores, _ = self._generate(RequestKind.EXPLORE, plan.iteration, seeds)
        fresh = {
            identity: self._explorer.signal(score) for identity, score in zip(seeds, scores, strict=True)
        }
        pairs: dict[int, tuple[list[float], list[float]]] = {}
        for draft in (draft for draft in plan.candidates if draft.error is None):
            stale_scores, fresh_scores = pairs.setdefault(draft.prompt_id, ([], []))
            stale_scores.append(self._explorer.signal(draft))
            fresh_scores.append(fresh[draft.prompt_id, draft.seed_index])
        agreement = compare(pairs, group)
        if agreement.spearman is not None:
            self.curve.spearman.append(agreement.spearman)
        if agreement.kept_overlap is not None:
            self.curve.kept_overlap.append(agreement.kept_overlap)
        share = captured(self.config, fresh, plan.seeds)
        if share is not None:
            self.curve.captured.append(share)
            known = list(self._by_id), self._before, plan.iteration
            self.curve.found.append(found_by_budget(self.config, *known, table=fresh))


@dataclass(frozen=True)
class ModelledFleet:
    """Devices that the seconds of one core are placed on.

    Attributes:
        reserved: devices that train and roll out.
        spot: devices that roll out, and explore while the reserved ones train.
        scorers: processes that judge images, on cores of their own.
    """

    reserved: int = 4
    spot: int = 8
    scorers: int = 12

    def critical_path_s(self, curve: Curve, timing: DraftTiming) -> float:
        """Seconds of a median iteration on this fleet.

        The rule: rollouts are divided over all devices, their scoring over the scorers, training over the
        reserved devices, and each follows the other. Drafts are scored while others are drawn. Drafts
        before the rollout are divided over all devices; those of a training window over the spot devices, and
        cost only what exceeds the training beside them. A draft's scoring is taken to cost what
        a rollout's does. Perfect division is assumed of all arms alike, of training too, which the runtime
        does on one device today; communication, loading, decoding and the monitor are not modelled.
        """
        devices = self.reserved + self.spot
        score = statistics.median(curve.score_s)
        rollout = statistics.median(curve.rollout_s) / devices + score / self.scorers
        train = statistics.median(curve.train_s) / self.reserved
        if timing is DraftTiming.NEVER:
            return rollout + train
        judged = statistics.median(curve.drafts) / statistics.median(curve.rollouts) * score
        drawn = statistics.median(curve.explore_s) - judged
        if timing is DraftTiming.BEFORE_ROLLOUT:
            return max(drawn / devices, judged / self.scorers) + rollout + train
        return rollout + max(train, drawn / self.spot, judged / self.scorers)
