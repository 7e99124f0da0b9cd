"""The strategy that follows `plain`, `stale` or `off_policy`, whichever has the most signal per second.

If spot devices may train (`runtime.trainer_workers`), `all_train` is a further choice: `plain`, with spot
devices training in the window instead of drafting.

A run begins as `off_policy` if its reward is graded, its objective accepts samples of any age, and the first
window's drafts are likely to finish before training does. Every other run, and one whose devices have not
been counted yet, begins without exploration on all devices that may train, like
`exploration.strategy=plain`.
Without exploration it trains on all prompt groups that it would have explored (`exploration.prompts`),
otherwise on `algorithm.prompts_per_iteration` of them.

After the first two iterations, and then every few, this strategy looks: from the scores and times so far it
predicts each strategy's signal per second (`signal_rate`) and follows the best one from the next call of
`ahead`. A look is arithmetic on recorded figures. Measurements of a choice replace assumptions about it, so
a later look drops a bad choice; drafts are then under way, so the change takes effect one iteration later.
Without drafts under way, `off_policy` takes effect at once: all devices draft the seeds that no window has
drafted, in place of a rollout, if the number of drafts is set or windows were measured. The time that
reserved devices take alone is measured while the run explores; until then their shards predict it.

Decisions are recorded before they take effect. A resumed or reproduced run repeats the recorded ones, even
if its own times differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpu_runtime.exploration.fidelity import FULL
from gpu_runtime.exploration.measured_iterations import MeasuredIterations
from gpu_runtime.exploration.plan import Note, SeedPlan
from gpu_runtime.exploration.prediction.contrast import ExpectedContrast
from gpu_runtime.exploration.signal_rate import (
    Prediction,
    Times,
    Workload,
    predict_drafting,
    predict_plain,
    preferred,
    with_other_trainers,
)
from gpu_runtime.exploration.strategies.off_policy import OffPolicy
from gpu_runtime.exploration.strategies.plain import PLAIN
from gpu_runtime.exploration.strategies.stale import STALE
from gpu_runtime.exploration.strategies.strategy import (
    DECIDED,
    Ahead,
    Drafting,
    Strategy,
    TrainingEvidence,
    refuse_too_few_drafts,
)
from storage.config.exploration import ExplorationConfig
from storage.config.run_config import RunConfig
from storage.config.runtime import RuntimeConfig
from storage.environment import AS_RECORDED
from storage.errors import ConfigurationError

FIRST_LOOKS, LOOK_EVERY = (1, 2), 5
"""It looks after these iterations, and after each multiple of the last. The first iteration warms devices
up, so the second one checks its result."""

TRAINED_AS_DRAFTS = 2
"""Drafts assumed to take a device as long as training on one sample, until both are measured: 2.0 on this
project's embedded model, 1.6 to 2.2 in public runs that publish their steps' times."""

_TAKES_ANY_AGE = ("nft", "awm", "dpo")
"""Objectives without a probability ratio, whose clip range stale drafts might leave."""

_PLAIN, _ALL_TRAIN, _STALE, _OFF_POLICY = "plain", "all_train", "stale", "off_policy"
_CHOICES = (_PLAIN, _ALL_TRAIN, _STALE, _OFF_POLICY)


class Auto(Strategy):
    """Follows one of the project's strategies, switching as measured scores and times suggest."""

    drafts_beside_training = True
    decides_by_times = True

    def __init__(self) -> None:
        self._off_policy = OffPolicy()
        self._follow(_ALL_TRAIN)
        self._decided = _ALL_TRAIN  # followed from the next call of `ahead`
        self._decisions: dict[int, str] = {}
        self._measured = MeasuredIterations()

    @property
    def spot_trains(self) -> bool:
        """True while it follows `all_train`."""
        return self._following == _ALL_TRAIN

    def used_beside_training(self, runtime: RuntimeConfig) -> float:
        """Return the number for the strategy it follows; infinity until the first looks."""
        if self._strategy.drafts or FIRST_LOOKS[-1] not in self._decisions:
            return math.inf
        return float(runtime.spot_trainers) if self.spot_trains else 0.0

    def undrafted_groups(self, iteration: int, config: RunConfig) -> int:
        """Return those that it would have explored; before the first window of drafts, like `off_policy`."""
        before_drafts = iteration == 1 and self._first == _OFF_POLICY
        return super().undrafted_groups(iteration, config) if before_drafts else config.prompts_explored

    def start(self, config: RunConfig) -> None:
        """Decide the first strategy, recorded as the decision after iteration 0."""
        algorithm, settings, runtime = config.algorithm, config.exploration, config.runtime
        drafters = runtime.least_workers - runtime.reserved_trainers
        takes_any = algorithm.objective in _TAKES_ANY_AGE and settings.fidelities == (FULL,)
        trained = algorithm.prompts_per_iteration * algorithm.group_size / runtime.reserved_trainers
        # The first window's drafts must be worth training on, and likely to delay nothing.
        at_once = config.reward.signal == "graded" and takes_any and drafters > 0
        if at_once and not settings.stop_with_training:
            at_once = settings.drafts / drafters <= TRAINED_AS_DRAFTS * trained
        self._decisions[0] = _OFF_POLICY if at_once else _ALL_TRAIN

    def check(self, config: RunConfig) -> None:
        """Refuse settings that leave nothing to choose from; without a free device, seeds are plain."""
        refuse_too_few_drafts(config.exploration, config.algorithm)

    def ahead(self, iteration: int, drafting: Drafting) -> Ahead | None:
        """Follow the last decision; None without drafts, so this iteration may still decide."""
        self._follow_decided()
        return self._strategy.ahead(iteration, drafting) if self._strategy.drafts else None

    def before_rollout(self, iteration: int, drafting: Drafting) -> SeedPlan:
        """Follow the last decision; drafts to train on that no window made are made now."""
        if iteration == 1:
            self._decided = self._first
        self._follow_decided()
        if self.trains_on_drafts and iteration > 1:
            return drafting.on_all_devices(iteration, as_in_window=True)
        return self._strategy.before_rollout(iteration, drafting)

    def redraft(self, iteration: int, drafting: Drafting) -> SeedPlan:
        """Draft as much as the window should have held, as `stale` does: only its drafts are refused."""
        return STALE.redraft(iteration, drafting)

    def after_training(self, iteration: int, evidence: TrainingEvidence) -> tuple[Note, ...]:
        """Let `off_policy`'s guard check drafts trained on, and decide if a look is due."""
        notes: tuple[Note, ...] = ()
        if evidence.figures is not None:  # drafts are still used just after leaving `off_policy`
            notes = self._off_policy.after_training(iteration, evidence)
            self._follow(self._following)
            self._decided = self._allowed(self._decided)
        if evidence.times is None or evidence.seeds is None:
            return notes
        self._measured.add(iteration, evidence.times, evidence.seeds, evidence.figures)
        if iteration in FIRST_LOOKS or iteration % LOOK_EVERY == 0:
            notes += ((DECIDED, f"iteration {iteration}: {self._look(iteration, evidence.seeds.config)}"),)
        return notes

    def decisions(self) -> Mapping[int, str]:
        """Return the first strategy and that of each look, including recorded ones still to come."""
        return dict(self._decisions)

    def repeat(self, decisions: Mapping[int, str], settings: ExplorationConfig) -> None:
        """Follow recorded decisions as far as they go."""
        cheaper = settings.fidelities != (FULL,)
        for iteration, name in decisions.items():
            if name not in _CHOICES:
                raise ConfigurationError(
                    f"the record chose {name!r} after iteration {iteration}, but exploration.strategy=auto "
                    f"only follows {', '.join(_CHOICES)}: use the version of Spotlight that made the record"
                )
            if name == _OFF_POLICY and cheaper:
                raise ConfigurationError(
                    f"the record chose {name} after iteration {iteration}, which trains on its drafts, "
                    f"but exploration.fidelities is {list(settings.fidelities)}: a cheaper draft "
                    "is not a sample of the policy; remove fidelities, or set another exploration.strategy"
                )
        if decisions:  # a new run has none, and keeps its first strategy
            self._decisions = dict(decisions)

    def state(self) -> dict[str, Any]:
        """Return JSON values, for a checkpoint."""
        return {
            "following": self._following,
            "decided": self._decided,
            "off_policy": self._off_policy.state(),
            "measured": self._measured.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore from what `state` returned; recorded decisions come by `repeat`."""
        self._off_policy.restore(state["off_policy"])
        self._follow(state["following"])
        self._decided = state["decided"]
        self._measured.restore(state["measured"])

    @property
    def _first(self) -> str:
        """The first strategy; a record without it comes from a run that began without drafts."""
        return self._decisions.get(0, _ALL_TRAIN)

    def _follow_decided(self) -> None:
        if self._decided == _OFF_POLICY != self._following:
            self._off_policy.begin()
        self._follow(self._decided)

    def _follow(self, name: str) -> None:
        self._following = self._allowed(name)
        followed = {_PLAIN: PLAIN, _ALL_TRAIN: PLAIN, _STALE: STALE, _OFF_POLICY: self._off_policy}
        self._strategy: Strategy = followed[self._following]
        self.trains_on_drafts = self._strategy.trains_on_drafts

    def _allowed(self, name: str) -> str:
        """Return the strategy, or `stale` for `off_policy` once its guard has stopped it."""
        return _STALE if name == _OFF_POLICY and not self._off_policy.trains_on_drafts else name

    def _look(self, iteration: int, config: RunConfig) -> str:
        """Decide which strategy to follow; return it and the reason as text."""
        if iteration in self._decisions:
            self._decided = self._allowed(self._decisions[iteration])
            return f"{self._decided} from here on, {AS_RECORDED}"
        spot_trains = config.runtime.spot_trainers > 0
        before = _PLAIN if self._decided == _ALL_TRAIN and not spot_trains else self._decided
        self._decided, why = self._choice(before, iteration, config)
        self._decisions[iteration] = self._decided
        return f"{'still ' if self._decided == before else ''}{self._decided} from here on: {why}"

    def _choice(self, present: str, iteration: int, config: RunConfig) -> tuple[str, str]:
        times, scores = self._measured.times(), self._measured.scores
        if times is None or not scores:
            return present, "no iteration has trained on samples yet, so there is nothing to compare"
        if times.drafters == 0:
            return _ALL_TRAIN if config.runtime.spot_trainers else _PLAIN, (
                "no device is free to draft while others train; add one that does not train "
                "(runtime.spot_workers, or runtime.reserved_workers above runtime.trainer_workers)"
            )
        predicted = self._predictions(scores, times, iteration, config)
        if not predicted[_PLAIN].rate:
            return present, "no prompt group is expected to have different scores"
        tried = {_PLAIN}
        tried |= {_ALL_TRAIN} if times.spot_train_s is not None else set()
        tried |= {_STALE} if self._measured.rolled_drafts_out else set()
        tried |= {_OFF_POLICY} if self._measured.trained_on_drafts else set()
        rates = {name: one.rate for name, one in predicted.items()}
        chosen = preferred(rates, present, _PLAIN, frozenset(tried))
        return chosen, _reason(predicted, chosen)

    def _predictions(
        self, scores: list[list[float]], times: Times, iteration: int, config: RunConfig
    ) -> dict[str, Prediction]:
        """Return the prediction for each possible strategy, the simplest first."""
        algorithm, settings = config.algorithm, config.exploration
        explored = config.prompts_explored
        everything = explored * settings.candidates
        work = Workload(
            samples=algorithm.prompts_per_iteration * algorithm.group_size,
            most_drafts=min(settings.drafts or everything, everything),
            ends_with_training=settings.stop_with_training,
            trains_equal=algorithm.zero_variance_groups == "train",
            rescored=min(1.0, settings.monitor_prompts / explored),
            saving=algorithm.prompts_per_iteration / explored,
        )
        contrast = ExpectedContrast(
            scores,
            algorithm.group_size,
            algorithm.prompts_per_iteration,
            explored,
            settings.candidates,
            (config.seed, iteration),
        )
        random, chosen = contrast.random, contrast.chosen
        undrafted = replace(work, samples=explored * algorithm.group_size)
        found = {_PLAIN: predict_plain(undrafted, times, random)}
        if spot := min(config.runtime.spot_trainers, int(times.drafters)):
            alone = config.runtime.reserved_trainers
            on_all_s = times.spot_train_s or with_other_trainers(
                times.train_s, algorithm.gradient_shards, alone, alone + spot
            )
            on_all = replace(times, train_s=on_all_s, beside_s=times.spot_beside_s)
            found[_ALL_TRAIN] = predict_plain(undrafted, on_all, random)
        found[_STALE] = predict_drafting(work, times, random, chosen, self._measured.holds)
        # Cheaper drafts are not samples of the policy.
        if self._off_policy.trains_on_drafts and settings.fidelities == (FULL,):
            on_drafts = predict_drafting(work, times, random, chosen)
            signal = on_drafts.signal * self._measured.gradient_share
            found[_OFF_POLICY] = replace(on_drafts, signal=signal)
        return found


def _reason(predicted: Mapping[str, Prediction], chosen: str) -> str:
    plain = predicted[_PLAIN]
    drafting = {name: one for name, one in predicted.items() if name != _PLAIN}
    gains = ", ".join(f"{name} {one.rate / plain.rate:.2f}" for name, one in drafting.items())
    named = chosen if chosen != _PLAIN else max(drafting, key=lambda name: drafting[name].rate)
    best = predicted[named]
    return (
        f"signal per second relative to plain: {gains}. With about {best.drafts:.0f} drafts an iteration, "
        f"{named} would train on groups of which {best.contrast.live:.0%} have differing scores (plain: "
        f"{plain.contrast.live:.0%}), with a standard deviation of {best.contrast.deviation:.3f} (plain: "
        f"{plain.contrast.deviation:.3f}), in {best.iteration_s:.3g} s (plain: {plain.iteration_s:.3g} s)"
    )
