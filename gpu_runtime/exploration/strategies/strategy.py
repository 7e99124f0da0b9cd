"""The exploration strategy: when drafts are made, with which weights, what is kept and trained on.

The loop, live or simulated, calls a strategy whenever seeds may be chosen, and asks it nothing:

- `ahead`, when the iteration before is about to be rolled out: it returns work to do beside its training,
  with the weights of its rollout, on the devices that do not train;
- `before_rollout`, if nothing was chosen ahead: the current weights are those of the rollout, and all
  devices are free;
- `redraft`, if the plan chosen ahead is not trusted.

Each time the strategy is given the `Drafting` of its run, which makes the drafts. `SeedExplorer` learns about
prompts and plans drafts for all strategies. The facts that begin with `drafts_` are for code that prepares a
run or reads its record, and needs to know them before the first iteration.
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
"""The kind of event that reports a decision by measured times."""

HeldOut = Mapping[int, Mapping[int, float]]
"""Held-out scores by iteration and prompt."""


@dataclass(frozen=True)
class TrainingEvidence:
    """Evidence of an iteration, for the strategy.

    Attributes:
        figures: figures of the samples of older weights that it was trained on; None where it had none.
        held_out: function that reads the scores of the evaluations before this iteration's.
        times: what it took; None if that was not measured.
        seeds: evidence on its seeds; None until they are reviewed.
    """

    figures: OffPolicyFigures | None
    held_out: Callable[[], HeldOut]
    times: IterationTimes | None = None
    seeds: SeedEvidence | None = None


@dataclass(frozen=True)
class Ahead:
    """Work beside an iteration's training that chooses the seeds of the next.

    Attributes:
        choose: function that chooses them; called in its own thread, once the rollout before is over.
        begin: function that begins drafts beside that rollout, once a device has nothing more to roll out. It
            returns the dispatcher's phase that makes them; None where no device can, or nothing is drafted.
    """

    choose: Callable[[], SeedPlan]
    begin: Callable[[], Any] = lambda: None


class Drafting(Protocol):
    """The ways to choose seeds in a run, live or simulated."""

    def plain(self, iteration: int) -> SeedPlan:
        """Choose the first prompts and seeds, without a draft."""
        ...

    def in_window(self, iteration: int) -> Ahead:
        """Draft while the iteration before trains, with the weights of its rollout.

        The plan is plain where no device is free to draft, or no rollout came before.
        """
        ...

    def on_all_devices(self, iteration: int, as_in_window: bool = False) -> SeedPlan:
        """Draft now, with the current weights, on every device, while the rollout waits.

        Args:
            as_in_window: True for as many drafts as a training window would hold, instead of every candidate,
                where exploration.drafts sets no number. The plan is plain before a window was measured.
        """
        ...


class Strategy:
    """The base of all strategies: this one never drafts, unless a subclass does.

    A strategy in another package is a subclass of this class or of one of the project's strategies.

    Attributes:
        drafts_beside_training: True if some drafts are made ahead, while the iteration before trains.
        drafts_before_rollout: True if some drafts are made while nothing else goes on.
        trains_on_drafts: True if the chosen drafts are the training samples, and are not rolled out again.
        decides_by_times: True if measured times choose what it does. It then overrides `decisions`.
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
        """True if spot devices train in the window now, where `runtime.trainer_workers` lets them."""
        return not self.drafts_beside_training

    def used_beside_training(self, runtime: RuntimeConfig) -> float:
        """Return how many spot devices are of use while reserved ones train; infinite if they draft."""
        return math.inf if self.drafts_beside_training else float(runtime.spot_trainers)

    def start(self, config: RunConfig) -> None:
        """Begin a run with these settings; `repeat` or `restore` follow if it is not a new one."""

    def undrafted_groups(self, iteration: int, config: RunConfig) -> int:
        """Return how many prompt groups an iteration without drafts rolls out and trains on."""
        return config.algorithm.prompts_per_iteration

    def check(self, config: RunConfig) -> None:
        """Refuse settings that leave nothing to choose from, or no device to draft on.

        Raises:
            ConfigurationError: if they do; it names the setting to change.
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
                f"{runtime.trainer_workers} and runtime.spot_workers=0: every device trains, so none could "
                "explore meanwhile; add a worker, or set exploration.strategy to plain or fresh"
            )

    def ahead(self, iteration: int, drafting: Drafting) -> Ahead | None:
        """Choose an iteration's seeds beside the training before it.

        Args:
            iteration: iteration to choose seeds for; the one before is about to be rolled out.

        Returns:
            The work to do beside it; None to choose the seeds once that iteration is over.
        """
        return None

    def before_rollout(self, iteration: int, drafting: Drafting) -> SeedPlan:
        """Choose the seeds of the iteration to roll out next, where none were chosen ahead."""
        return drafting.plain(iteration)

    def redraft(self, iteration: int, drafting: Drafting) -> SeedPlan:
        """Choose seeds again, in place of a plan whose drafts are not trusted."""
        return drafting.on_all_devices(iteration)

    def choose(self, planner: DraftPlanner, judged: Mapping[int, Mapping[int, float]]) -> Choice:
        """Choose the drafts to keep: by default the group of largest variance, by exact selection.

        Args:
            judged: score of each judged draft, by prompt and seed index; the value that is learned from.
        """
        return planner.choose()

    def after_training(self, iteration: int, evidence: TrainingEvidence) -> tuple[Note, ...]:
        """Look at the evidence of an iteration's training; return events to record."""
        return ()

    def decisions(self) -> Mapping[int, str]:
        """Return what measured times have decided so far, by iteration.

        They are recorded before they take effect, which is at the next call of `ahead` or `before_rollout`.
        """
        return {}

    def repeat(self, decisions: Mapping[int, str], settings: ExplorationConfig) -> None:
        """Follow recorded decisions instead of measured times, as far as they go.

        Args:
            settings: settings of the run, which may differ from those of the run that decided.

        Raises:
            ConfigurationError: a decision cannot be followed.
        """

    def state(self) -> dict[str, Any]:
        """Return JSON values, for a checkpoint."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore from what `state` returned."""


def refuse_too_few_drafts(settings: ExplorationConfig, algorithm: AlgorithmConfig) -> None:
    """Refuse settings that leave a strategy that drafts nothing to choose from.

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
            f"exploration.drafts is {settings.drafts}, below algorithm.group_size={group_size}: not one "
            "prompt could be explored; raise drafts, or set exploration.strategy=plain"
        )
