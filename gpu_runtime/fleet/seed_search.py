"""The seed search on live devices: which of them draft, how much, and with what result.

The strategy decides when to draft, `SeedExplorer` plans and learns, and a `DraftPhase` drafts and scores. A
window's drafts begin during the rollout (`Ahead.begin`). `Ahead.choose`, which continues them, may run in a
thread during reward and training. Everything else except the window's end is called only while it does not
run, so the explorer's state has one writer at a time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gpu_runtime.dispatch.devices import Weights
from gpu_runtime.dispatch.drafts import DraftLimits, DraftPhase, DraftTask, KeptDrafts, TrainingWindow
from gpu_runtime.exploration.draft_planner import Draft
from gpu_runtime.exploration.explorer import SeedExplorer
from gpu_runtime.exploration.fidelity import FULL, costs_of, denoising_steps, own_schedule, preview_step
from gpu_runtime.exploration.measured_iterations import SeedEvidence
from gpu_runtime.exploration.monitor import MONITOR_ROUND
from gpu_runtime.exploration.plan import Candidate, Note, SeedPlan, seed_figures
from gpu_runtime.exploration.strategies.strategy import Ahead, TrainingEvidence
from gpu_runtime.exploration.window import HEADROOM
from gpu_runtime.fleet.fleet import Fleet
from gpu_runtime.fleet.scoring_pool import ScoringPool
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion
from gpu_runtime.scheduling.scores import Score
from storage.config.run_config import RunConfig
from storage.prompts.files import PromptRecord

Scored = Mapping[tuple[int, int], Score]
"""Scores of a rollout by (prompt_id, seed index)."""


@dataclass(frozen=True)
class SeedReview:
    """An iteration's evidence on its seeds.

    Attributes:
        rescored: drafts that the staleness monitor re-scored.
        next_plan: seeds of the next iteration; `refused` if they must be redrafted.
        notes: messages to users, as (kind of event, message).
    """

    figures: dict[str, float] = field(default_factory=dict)
    rescored: tuple[Candidate, ...] = ()
    next_plan: SeedPlan | None = None
    notes: tuple[Note, ...] = ()


class SeedSearch:
    """The search for the seeds of each iteration: the `Drafting` of a live run."""

    def __init__(
        self,
        config: RunConfig,
        explorer: SeedExplorer,
        prompts: Iterable[PromptRecord],
        fleet: Fleet,
        scoring: ScoringPool,
        weights: Callable[[], Weights],
    ) -> None:
        self._config = config
        self._settings = config.exploration
        self._explorer = explorer
        self._strategy = explorer.strategy
        self._weights = weights
        self._prompts = {prompt.prompt_id: prompt for prompt in prompts}
        self._fleet = fleet
        self._scoring = scoring
        steps = config.sampling.rollout_steps
        self._cost = costs_of((FULL, *self._settings.fidelities), config.sampling)
        self._steps = {name: denoising_steps(name, steps) for name in self._cost}
        self.kept = KeptDrafts()
        """Drafts to train on, if the strategy does so."""
        self._said_no_device = False
        self._window: TrainingWindow | None = None
        self._begun: tuple[int, DraftPhase] | None = None  # an iteration's drafts

    def new_window(self, plan: SeedPlan, version: WeightsVersion) -> TrainingWindow:
        """Begin the window of a plan about to be rolled out; devices hold these weights until it ends."""
        self._window, self._begun = TrainingWindow(plan, version), None
        self.kept.forget_before(plan.iteration)
        return self._window

    def close_window(self) -> None:
        """Close the window at the end of the training steps."""
        if self._window is not None:
            self._window.close(time.monotonic())

    def abandon(self) -> None:
        """Abandon the current drafts, which are now useless; a phase under way ends at once."""
        if self._window is not None:
            self._window.abandon()

    def forget(self) -> None:
        """Forget windows and drafts, because the weights are about to be replaced."""
        self.abandon()
        self._window = self._begun = None
        self.kept.forget()

    def plain(self, iteration: int) -> SeedPlan:
        """See `Drafting`."""
        return self._explorer.plain(iteration)

    def in_window(self, iteration: int) -> Ahead:
        """See `Drafting`."""
        return Ahead(partial(self._choose_in_window, iteration), partial(self.begin, iteration))

    def on_all_devices(self, iteration: int, as_in_window: bool = False) -> SeedPlan:
        """See `Drafting`."""
        weights = self._weights()
        self._fleet.prepare(weights)
        budget: float | None = self._settings.drafts or None
        devices = 1
        if as_in_window:
            devices = len(self._fleet.drafters(weights.version)) + len(self._fleet.trainers.spot)
            budget = self._budget(devices)
            if not budget:
                return self._explorer.plain(iteration)
        phase = self._phase(iteration, weights.version, budget, devices)
        self._fleet.do(phase)
        phase.end()
        return self._finish(iteration, phase)

    def begin(self, iteration: int) -> DraftPhase | None:
        """Begin a window's drafts with the preceding rollout's weights; None if no device can draft."""
        window = self._window
        assert window is not None, "drafts begin with a rollout"
        devices = self._fleet.drafters(window.version)
        if not devices:
            return None
        rescores: list[DraftTask] = []
        drafted_on = window.plan.iteration
        # Other weights drew the plan's drafts, and the run did not train on them.
        if _is_stale(window.plan, window.version.policy_version) and not self.kept.of(drafted_on):
            again = self._explorer.monitored(window.plan)
            rescores = [self._task(drafted_on, window.version, MONITOR_ROUND, draft) for draft in again]
        # Plan drafts beyond the window's predicted end too, since it may come late; its end cuts them off.
        budget = self._budget(len(devices), HEADROOM, rescores)
        phase = self._phase(iteration, window.version, budget, len(devices), window, rescores)
        self._begun = iteration, phase
        window.drafters = self._groups(len(devices))
        return phase

    def _choose_in_window(self, iteration: int) -> SeedPlan:
        """Choose seeds with the last rollout's weights during training; plain without window or device."""
        window = self._window
        if window is None:
            return self._explorer.plain(iteration)
        if self._begun is None or self._begun[0] != iteration:
            self._begun = None
            self.begin(iteration)
        begun, self._begun = self._begun, None
        if begun is None:
            if self._said_no_device:
                return self._explorer.plain(iteration)
            self._said_no_device = True
            note = (
                f"only the trainer holds the weights to draft seeds for iteration {iteration}, so its seeds "
                "are plain. Drafting resumes once replacements of lost devices have loaded"
            )
            return self._explorer.plain(iteration, ("exploration", note))
        _, phase = begun
        with self._fleet.beside_training():
            self._fleet.do(phase)
            phase.end()
        window.lease_s, window.full_drafts = phase.lease_s, phase.full_drafts
        again = [candidate for candidate in phase.candidates if candidate.round == MONITOR_ROUND]
        # The order of arrival must not matter.
        again.sort(key=lambda draft: (draft.fidelity, draft.prompt_id, draft.seed_index))
        window.rescored = tuple(again)
        return self._finish(iteration, phase)

    def review(
        self,
        plan: SeedPlan,
        scored: Scored,
        next_plan: SeedPlan | None,
        policy_version: int,
        evidence: TrainingEvidence | None = None,
    ) -> SeedReview:
        """Review an iteration: return figures of its seeds, and decide whether to trust the next ones.

        Args:
            next_plan: plan drafted meanwhile for the next iteration; None if there is none yet.
            policy_version: version of the weights for the next iteration's rollout.
        """
        judged = {identity: score for identity, score in scored.items() if score.error is None}
        signal = {identity: self._explorer.signal(score) for identity, score in judged.items()}
        drafted = self.kept.of(plan.iteration)
        values = {identity: score.value for identity, score in judged.items() if identity not in drafted}
        figures = seed_figures(plan, signal, values)
        if self._strategy.trains_on_drafts or drafted:
            figures["drafts_trained"] = float(len(drafted))
        notes: tuple[Note, ...] = ()
        if evidence is not None:
            if self._strategy.decides_by_times:
                evidence = replace(evidence, seeds=self._seed_evidence(plan, signal, figures, next_plan))
            notes = self._strategy.after_training(plan.iteration, evidence)
        if not self._strategy.trains_on_drafts and next_plan is not None:
            self.kept.forget(next_plan.iteration)
        window = self._window
        if window is None:
            return SeedReview(figures, (), next_plan, notes)
        if window.length_s is not None and not self._fleet.trainers.spot:  # spot trainers shorten it
            self._explorer.forecast.add_window(window.length_s)
        self._explorer.forecast.add_drafts(window.lease_s, window.full_drafts)
        verdict = self._explorer.review(plan, window.rescored, judged)
        if verdict is None:
            return SeedReview(figures, window.rescored, next_plan, notes)
        for name in ("spearman", "kendall", "kept_overlap"):
            if (value := getattr(verdict.agreement, name)) is not None:
                figures[name] = value
        if not verdict.trusted and next_plan is not None and _is_stale(next_plan, policy_version):
            next_plan = replace(next_plan, refused=True)
        return SeedReview(figures, window.rescored, next_plan, (*notes, *verdict.notes))

    def _seed_evidence(
        self,
        plan: SeedPlan,
        signal: Mapping[tuple[int, int], float],
        figures: Mapping[str, float],
        next_plan: SeedPlan | None,
    ) -> SeedEvidence | None:
        """Return an iteration's evidence on the choice of seeds; None before any rollout.

        Args:
            signal: scores learned from, for its judged samples.
            next_plan: plan drafted during its training.
        """
        window = self._window
        if window is None:
            return None
        scores: dict[int, list[float]] = {}
        for draft in plan.candidates:
            if draft.error is None and draft.fidelity == FULL:
                scores.setdefault(draft.prompt_id, []).append(self._explorer.signal(draft))
        if not plan.candidates:
            for (prompt, _), value in sorted(signal.items()):
                scores.setdefault(prompt, []).append(value)
        drafted = len(self.kept.of(plan.iteration))
        spread = None
        if not drafted and not plan.superseded and "spread_kept" in figures and "spread_rollout" in figures:
            spread = figures["spread_random"], figures["spread_kept"], figures["spread_rollout"]
        samples = sum(map(len, plan.seeds.values()))
        on_spot = len(self._fleet.trainers.spot)
        judged = len(window.rescored) + (0 if next_plan is None else len(next_plan.candidates))
        return SeedEvidence(
            self._config,
            scores,
            spread,
            samples,
            samples - drafted,
            judged if window.drafters else None,
            window.drafters or self._groups(on_spot + len(self._fleet.drafters(window.version))),
            on_spot,
        )

    def _budget(
        self, devices: int, headroom: float = 1.0, rescores: Sequence[DraftTask] = ()
    ) -> float | None:
        """Return an iteration's number of full drafts: as set, or what fits a window; None until measured."""
        if self._settings.drafts:
            return self._settings.drafts
        held = self._explorer.forecast.budget(self._groups(devices))
        if held is None:
            return None
        # The monitor's drafts take their share, including the rows that pad their batches.
        size, counts = self._config.sampling.batch_size, Counter(task.fidelity for task in rescores)
        taken = sum(-(-count // size) * size * self._cost[name] for name, count in counts.items())
        return max(0.0, headroom * held - taken)

    def _groups(self, devices: int) -> int:
        """Return how many batches these devices make at a time; devices that share a draft make one."""
        return -(-devices // self._config.sequence_parallel.explore)

    def _phase(
        self,
        iteration: int,
        version: WeightsVersion,
        budget: float | None,
        devices: int,
        window: TrainingWindow | None = None,
        rescores: Sequence[DraftTask] = (),
    ) -> DraftPhase:
        """Return a phase of drafts with these weights, on all devices if it is in no window.

        Args:
            budget: number of full drafts; None for every candidate.
            devices: devices that draft, on which the plan depends.
        """
        # A set number of drafts is planned for one batch at a time, so no fleet changes its plan.
        at_once = 1 if self._settings.drafts else self._groups(devices)
        planner = self._explorer.begin(iteration, budget, at_once)
        stops = window is not None and self._settings.stop_with_training
        limits = DraftLimits(
            self._config.sampling.batch_size,
            self._steps,
            self._cost,
            window,
            drafts_on=lambda device: window is None or device not in self._fleet.trainers,
            stops_with_training=stops,
        )
        if stops:
            limits = replace(limits, fits=self._explorer.forecast.fits)
        task = partial(self._task, iteration, version)
        judge = partial(self._scoring.judge, prompts=self._prompts)
        return DraftPhase(rescores, planner, self._explorer.signal, task, judge, version, limits)

    def _finish(self, iteration: int, phase: DraftPhase) -> SeedPlan:
        drafts = (draft for draft in phase.candidates if draft.round != MONITOR_ROUND)
        plan = self._explorer.finish(iteration, phase.planner, drafts)
        if self._strategy.trains_on_drafts:
            self.kept.keep(plan, phase.samples)
        return plan

    def _task(self, iteration: int, version: WeightsVersion, round_: int, draft: Draft) -> DraftTask:
        prompt = self._prompts[draft.prompt_id]
        request = SampleRequest(
            RequestKind.EXPLORE, self._config.seed, iteration, draft.prompt_id, draft.seed_index,
            version.policy_version, prompt.text, preview_step(draft.fidelity), own_schedule(draft.fidelity),
            trainable=self._strategy.trains_on_drafts and round_ != MONITOR_ROUND, source=prompt.source,
        )  # fmt: skip
        return DraftTask(request, draft.fidelity, round_)


def _is_stale(plan: SeedPlan, policy_version: int) -> bool:
    """Return True if other weights drew any of its drafts; the same weights would draw the same again."""
    return any(draft.policy_version != policy_version for draft in plan.stale_drafts)
