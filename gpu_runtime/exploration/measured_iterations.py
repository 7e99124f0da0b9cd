"""Scores and times of a run's iterations so far, from which the next ones are predicted.

Estimates are medians over the last informative iterations: a rollout of mostly kept drafts does not show
what a rollout costs, nor an iteration without contrast what training costs. The first iteration, which
warms devices up, counts only while it is the only one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpu_runtime.exploration.signal_rate import Times, with_other_trainers
from gpu_runtime.learning.report import OffPolicyFigures
from storage.config.run_config import RunConfig

_REMEMBERED = 5
"""Iterations that an estimate covers."""

_HOLDS = 0.56
"""Share of the choice's gain in variance that survives an update, until it is measured: the square of a
rank correlation of 0.75."""

_ASSUMED_ITERATIONS = 1.0
"""Weight of this assumption, in iterations."""


@dataclass(frozen=True)
class IterationTimes:
    """Measured times of one iteration.

    Attributes:
        rollout_s, judging_s, train_s, draft_wait_s: wall-clock of its consecutive phases: rollout, wait for
            the last scores, the remaining training, and the wait for drafts.
        whole_s: wall-clock from the start of its rollout, including publishing the new weights and
            replacing refused drafts.
        trained: samples that it trained on.
        rollers: devices that rolled its samples out.
        beside_s: training during its rollout and the wait for scores.
    """

    rollout_s: float
    judging_s: float
    train_s: float
    draft_wait_s: float
    whole_s: float
    trained: int
    rollers: int
    beside_s: float = 0.0


@dataclass(frozen=True)
class SeedEvidence:
    """An iteration's evidence on the choice of its seeds and of the next ones.

    Attributes:
        scores: scores learned from, by prompt, of samples not chosen by their score: the drafts, or else
            the rollout.
        spread: mean variance of random, kept and rolled-out groups of the same prompts; None unless chosen
            seeds were rolled out again.
        samples: samples of its prompt groups.
        rolled: how many of them were rolled out rather than kept drafts.
        drafts: drafts judged during its training, including the monitor's; None if none were started.
        drafters: devices that drafted there, or could have.
        spot_trainers: spot devices that took part in training.
    """

    config: RunConfig
    scores: Mapping[int, Sequence[float]]
    spread: tuple[float, float, float] | None
    samples: int
    rolled: int
    drafts: int | None
    drafters: int
    spot_trainers: int = 0


@dataclass(frozen=True)
class _Iteration:
    number: int
    times: IterationTimes
    samples: int
    rolled: int
    drafts: int | None
    drafters: int
    spot_trainers: int
    alone_ratio: float = 1.0
    """Factor by which training slows without spot devices, from its shards."""


class MeasuredIterations:
    """The last iterations of a run."""

    def __init__(self) -> None:
        self._iterations: list[_Iteration] = []
        self._scores: list[list[list[float]]] = []
        self._gains: list[tuple[float, float]] = []
        self._clipped: list[float] = []

    @property
    def scores(self) -> list[list[float]]:
        """Scores of samples not chosen by their score, prompt by prompt."""
        return [group for iteration in self._scores for group in iteration]

    @property
    def rolled_drafts_out(self) -> bool:
        """True if chosen seeds have been rolled out again."""
        return bool(self._gains)

    @property
    def trained_on_drafts(self) -> bool:
        """True if drafts have been trained on."""
        return bool(self._clipped)

    @property
    def holds(self) -> float:
        """Share in [0, 1] of the choice's gain in variance that survives a new rollout."""
        kept, rolled = (sum(gains) for gains in zip(*self._gains, strict=True)) if self._gains else (0.0, 0.0)
        assumed = _ASSUMED_ITERATIONS * (kept / len(self._gains) if self._gains else 1.0)
        return min(1.0, max(0.0, (rolled + assumed * _HOLDS) / (kept + assumed)))

    @property
    def gradient_share(self) -> float:
        """Share of trained drafts' steps that had a gradient; 1 until measured."""
        return 1 - (statistics.fmean(self._clipped) if self._clipped else 0.0)

    def add(
        self, number: int, times: IterationTimes, seeds: SeedEvidence, figures: OffPolicyFigures | None
    ) -> None:
        """Add an iteration.

        Args:
            figures: figures of the drafts that it trained on; None if there were none.
        """
        if seeds.spread is not None:
            random, kept, rolled = seeds.spread
            if kept > random:
                self._gains = [*self._gains, (kept - random, rolled - random)][-_REMEMBERED:]
        if figures is not None:
            self._clipped = [*self._clipped, figures.clip_share][-_REMEMBERED:]
        scores = [[float(score) for score in group] for group in seeds.scores.values() if len(group) > 1]
        if scores:
            self._scores = [*self._scores, scores][-_REMEMBERED:]
        alone, shards = seeds.config.runtime.reserved_trainers, seeds.config.algorithm.gradient_shards
        added = _Iteration(
            number, times, seeds.samples, seeds.rolled, seeds.drafts, seeds.drafters, seeds.spot_trainers,
            with_other_trainers(1.0, shards, alone + seeds.spot_trainers, alone),
        )  # fmt: skip
        every = [*self._iterations, added]
        # Keep what an estimate needs, however old it is.
        kept_numbers = {one.number for one in every[-_REMEMBERED:]} | {
            one.number for fact in _TELLING for one in _last(every, fact)
        }
        self._iterations = [one for one in every if one.number in kept_numbers]

    def times(self) -> Times | None:
        """Return the seconds that samples and drafts take; None until rollout and training are measured."""
        rolling, alone, on_all, drafting, plain, beside, spot_beside = (
            _last(self._iterations, fact)
            for fact in ("rollout", "training", "spot training", "drafts", "plain", "beside", "spot beside")
        )
        training = alone or on_all
        if not rolling or not training:
            return None
        rollout_s = statistics.median(one.times.rollout_s / one.rolled for one in rolling)
        # Until one is judged, assume a draft takes as long as a rollout, since it has equally many steps.
        assumed_s = rollout_s * statistics.median(one.times.rollers for one in rolling)
        plain_rest_s, drafting_rest_s = (
            statistics.median(map(_rest_s, some)) for some in (plain or drafting, drafting or plain)
        )
        return Times(
            rollout_s=rollout_s,
            judging_s=statistics.median(one.times.judging_s / one.rolled for one in rolling),
            train_s=statistics.median(_train_s(one) * one.alone_ratio for one in training),
            draft_s=_usual_draft_s(drafting, assumed_s),
            rest_s=plain_rest_s,
            # Devices come and go: iterations without drafting devices count only if all are such.
            drafters=statistics.median(
                [one.drafters for one in self._iterations[-_REMEMBERED:] if one.drafters] or [0]
            ),
            overhead_s=max(0.0, drafting_rest_s - plain_rest_s),
            # Reserved devices alone would have trained for longer, at most during all of the rollout.
            beside_s=statistics.median(
                min(one.times.beside_s * one.alone_ratio, one.times.rollout_s + one.times.judging_s)
                / one.rolled
                for one in beside or spot_beside
            ),
            spot_beside_s=statistics.median(
                [one.times.beside_s / one.rolled for one in spot_beside] or [0.0]
            ),
            spot_train_s=statistics.median(map(_train_s, on_all)) if on_all else None,
        )

    def state(self) -> dict[str, Any]:
        """Return JSON values, for a checkpoint."""
        return {
            "iterations": [asdict(one) for one in self._iterations],
            "scores": self._scores,
            "gains": self._gains,
            "clipped": self._clipped,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore from what `state` returned."""
        self._iterations = [
            _Iteration(**one | {"times": IterationTimes(**one["times"])}) for one in state["iterations"]
        ]
        self._scores, self._clipped = list(state["scores"]), list(state["clipped"])
        self._gains = [(kept, rolled) for kept, rolled in state["gains"]]


_TELLING: dict[str, Callable[[_Iteration], bool]] = {
    "rollout": lambda one: 2 * one.rolled >= one.samples,  # not if most samples were kept drafts
    "training": lambda one: one.times.trained > 0 and not one.spot_trainers,
    "spot training": lambda one: one.times.trained > 0 and one.spot_trainers > 0,
    "beside": lambda one: 2 * one.rolled >= one.samples and not one.spot_trainers,
    "spot beside": lambda one: 2 * one.rolled >= one.samples and one.spot_trainers > 0,
    "drafts": lambda one: one.drafts is not None,
    "plain": lambda one: one.drafts is None,
}
"""A test of an iteration: True if it informs an estimate."""


def _last(iterations: Iterable[_Iteration], fact: str) -> list[_Iteration]:
    """Return the last informative iterations, without the first if there are others."""
    found = [one for one in iterations if _TELLING[fact](one)][-_REMEMBERED:]
    return [one for one in found if one.number > 1] or found


def _train_s(one: _Iteration) -> float:
    return (one.times.beside_s + one.times.train_s) / one.times.trained


def _usual_draft_s(drafting: Sequence[_Iteration], assumed_s: float) -> float:
    """Return a device's seconds per draft in a window, waiting included.

    Args:
        assumed_s: seconds to return if none was judged.
    """
    spent = [
        ((one.times.judging_s + one.times.train_s + one.times.draft_wait_s) * one.drafters, one.drafts or 0)
        for one in drafting
    ]
    judged = [device_s / drafts for device_s, drafts in spent if drafts]
    usual_s = statistics.median(judged) if judged else assumed_s
    # A window without judged drafts gives a lower bound.
    bounds = [max(usual_s, device_s) for device_s, drafts in spent if not drafts]
    return statistics.median(judged + bounds) if spent else assumed_s


def _rest_s(one: _Iteration) -> float:
    times = one.times
    return max(0.0, times.whole_s - times.rollout_s - times.judging_s - times.train_s - times.draft_wait_s)
