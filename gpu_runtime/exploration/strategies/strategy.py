"""The exploration strategy: when to draft, with which weights, what to keep and train on.

The loop, live or simulated, calls a strategy whenever it may choose seeds, and queries nothing:

- `ahead`, when the previous iteration is about to be rolled out: it returns work to do during that
  iteration's training, with its rollout's weights, on the devices that do not train;
- `before_rollout`, if nothing was chosen ahead: the current weights are the rollout's, and all devices
  are free;
- `redraft`, if the plan chosen ahead is not trusted.

Each call passes the run's `Drafting`, which makes the drafts. `SeedExplorer` learns about prompts and plans
drafts for all strategies. The attributes that begin with `drafts_` are for code that prepares a run or
reads its record, and needs them before the first iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpu_runtime.exploration.draft_planner import Choice, DraftPlanner
from gpu_runtime.exploration.measured_iterations import IterationTimes, SeedEvidence
from gpu_runtime.exploration.plan import Note, SeedPlan
from gpu_runtime.learning.report import OffPolicyFigures
from storage.config.exploration import ExplorationConfig
from storage.config.run_config import AlgorithmConfig, RunConfig
from storage.config.runtime import RuntimeConfig
from storage.errors import ConfigurationError

DECIDED = "strategy"
"""The kind of event for a decision based on measured times."""

HeldOut = Mapping[int, Mapping[int, float]]
"""Held-out scores by iteration and prompt."""


@dataclass(frozen=True)
class TrainingEvidence:
    """Evidence from an iteration, for the strategy.

    Attributes:
        figures: figures of the samples from older weights that it trained on; None if it had none.
        held_out: reads the scores of the evaluations before this iteration's.
        times: the time it took; None if not measured.
        seeds: evidence on its seeds; None until they are reviewed.
    """

    figures: OffPolicyFigures | None
    held_out: Callable[[], HeldOut]
    times: IterationTimes | None = None
    seeds: SeedEvidence | None = None


@dataclass(frozen=True)
class Ahead:
    """Work during an iteration's training that chooses the seeds of the next.

    Attributes:
        choose: chooses them; called in its own thread once the previous rollout is over.
        begin: begins drafts during that rollout, once a device has nothing more to roll out. It returns
            the dispatcher's phase that makes them; None if no device can, or nothing is drafted.
    """

    choose: Callable[[], SeedPlan]
    begin: Callable[[], Any] = lambda: None


class Drafting(Protocol):
    """The ways to choose seeds in a run, live or simulated."""

    def plain(self, iteration: int) -> SeedPlan:
        """Choose the first prompts and seeds, without drafts."""
        ...

    def in_window(self, iteration: int) -> Ahead:
        """Draft while the previous iteration trains, with its rollout's weights.

        The plan is plain if no device is free to draft, or there was no earlier rollout.
        """
        ...

    def on_all_devices(self, iteration: int, as_in_window: bool = False) -> SeedPlan:
        """Draft now with the current weights, on every device, while the rollout waits.

        Args:
            as_in_window: if exploration.drafts sets no number, True limits drafts to what a training window
                would hold, instead of every candidate. The plan is plain until a window has been measured.
        """
        ...


class Strategy:
    """The base of all strategies; it never drafts.

    A strategy in another package is a subclass of this class or of one of the project's strategies.

    Attributes:
        drafts_beside_training: True if it makes drafts ahead, while the previous iteration trains.
        drafts_before_rollout: True if it makes drafts while nothing else runs.
        trains_on_drafts: True if the chosen drafts are the training samples and are not rolled out again.
        decides_by_times: True if measured times decide what it does. It then overrides `decisions`.
    """

    drafts_beside_training: bool = False
    drafts_before_rollout: bool = False
    trains_on_drafts: bool = False
    decides_by_times: bool = False

    @property
    def drafts(self) -> bool:
        """True if it drafts at all."""
        return self.drafts_beside_training or self.drafts_before_rollout

    @property
    def spot_trains(self) -> bool:
        """True if spot devices train in the window now, if `runtime.trainer_workers` allows it."""
        return not self.drafts_beside_training

    def used_beside_training(self, runtime: RuntimeConfig) -> float:
        """Return how many spot devices are useful while reserved ones train; infinite if they draft."""
        return math.inf if self.drafts_beside_training else float(runtime.spot_trainers)

    def start(self, config: RunConfig) -> None:
        """Begin a run with these settings; `repeat` or `restore` follow unless it is new."""

    def undrafted_groups(self, iteration: int, config: RunConfig) -> int:
        """Return how many prompt groups an iteration without drafts rolls out and trains on."""
        return config.algorithm.prompts_per_iteration

    def check(self, config: RunConfig) -> None:
        """Refuse settings that leave nothing to choose from, or no device to draft on.

        Raises:
            ConfigurationError: names the setting to change.
        """
        if self.drafts:
            refuse_too_few_drafts(config.exploration, config.algorithm)
        runtime = config.runtime
        if runtime.spot_trainers and self.drafts_beside_training:
            raise ConfigurationError(
                f"runtime.trainer_workers is {runtime.trainer_workers}, above runtime.reserved_workers="
                f"{runtime.reserved_workers}, with exploration.strategy={config.exploration.strategy}: spot "
                "devices cannot train and draft at the same time; lower it, or set exploration.strategy to "
                "plain, fresh or auto"
            )
        all_train = not runtime.counts_devices and runtime.least_workers <= runtime.trainer_workers
        if self.drafts_beside_training and all_train:
            raise ConfigurationError(
                f"exploration.strategy is {config.exploration.strategy} with runtime.reserved_workers="
                f"{runtime.trainer_workers} and runtime.spot_workers=0: every device trains, so none can "
                "explore meanwhile; add a worker, or set exploration.strategy to plain or fresh"
            )

    def ahead(self, iteration: int, drafting: Drafting) -> Ahead | None:
        """Choose an iteration's seeds during the training before it.

        Args:
            iteration: iteration to choose seeds for; the previous one is about to be rolled out.

        Returns:
            The work to do during its training; None to choose the seeds once it is over.
        """
        return None

    def before_rollout(self, iteration: int, drafting: Drafting) -> SeedPlan:
        """Choose the seeds of the next iteration to roll out, if none were chosen ahead."""
        return drafting.plain(iteration)

    def redraft(self, iteration: int, drafting: Drafting) -> SeedPlan:
        """Choose seeds again, replacing a plan whose drafts are not trusted."""
        return drafting.on_all_devices(iteration)

    def choose(self, planner: DraftPlanner, judged: Mapping[int, Mapping[int, float]]) -> Choice:
        """Choose the drafts to keep: by default the group of largest variance, selected exactly.

        Args:
            judged: the learned score of each judged draft, by prompt and seed index.
        """
        return planner.choose()

    def after_training(self, iteration: int, evidence: TrainingEvidence) -> tuple[Note, ...]:
        """Examine the evidence from an iteration's training; return events to record."""
        return ()

    def decisions(self) -> Mapping[int, str]:
        """Return the decisions that measured times have led to so far, by iteration.

        They are recorded before they take effect at the next call of `ahead` or `before_rollout`.
        """
        return {}

    def repeat(self, decisions: Mapping[int, str], settings: ExplorationConfig) -> None:
        """Follow recorded decisions instead of measured times, as far as they go.

        Args:
            settings: this run's settings, which may differ from those of the run that decided.

        Raises:
            ConfigurationError: a decision cannot be followed.
        """

    def state(self) -> dict[str, Any]:
        """Return JSON values, for a checkpoint."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore from what `state` returned."""


def refuse_too_few_drafts(settings: ExplorationConfig, algorithm: AlgorithmConfig) -> None:
    """Refuse settings that leave a drafting strategy nothing to choose from.

    Raises:
        ConfigurationError: they do.
    """
    group_size, trained = algorithm.group_size, algorithm.prompts_per_iteration
    if settings.candidates < group_size:
        raise ConfigurationError(
            f"exploration.candidates is {settings.candidates}, below algorithm.group_size={group_size}: "
            "there is nothing to choose from; raise candidates to several groups, or lower group_size"
        )
    if 0 < settings.prompts < trained:
        raise ConfigurationError(
            f"exploration.prompts is {settings.prompts}, below algorithm.prompts_per_iteration={trained}: "
            "the prompt groups to train on are chosen from the explored ones; raise prompts, or set it to 0 "
            "to explore no others"
        )
    if 0 < settings.drafts < group_size:
        raise ConfigurationError(
            f"exploration.drafts is {settings.drafts}, below algorithm.group_size={group_size}: no "
            "prompt could be explored; raise drafts, or set exploration.strategy=plain"
        )
