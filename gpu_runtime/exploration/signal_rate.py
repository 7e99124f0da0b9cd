"""Signal per second of an iteration, predicted for each strategy from contrast and times. Pure.

Signal. An update has a fixed length (AdamW), so what it brings is decided by the signal-to-noise ratio of its
gradient: with advantages that are normalised in their group, a sample's signal is the deviation of its
group's scores, and noise averages out over samples. So an iteration has the signal

    mean deviation of the groups that have any * sqrt(number of samples in them)

The deviation is the gain per sample of a choice by contrast (PODS, arXiv 2504.13818); the square root is the
averaging of a stochastic gradient's noise (McCandlish et al., An empirical model of large-batch training,
arXiv 1812.06162, below the critical batch size). Only ratios of signals mean anything.

Time. Rollout, waiting for the last scores and training follow each other; drafts are made beside the last
two. So more trained groups lengthen the window, which holds more drafts, which leave more groups with
contrast to train on: the number of drafts is the largest one that agrees with its own window.

Staleness. Kept groups that are rolled out again lose a part of the variance that they were chosen for: with
correlation r of old and new scores, the variance is r^2 * kept + (1 - r^2) * random (linear regression).

Units: seconds; deviations in units of the score; a sample or draft is one image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

UNTRIED = 1.1
"""Ratio to the present strategy's signal per second from which one is preferred that was not measured yet."""

TRIED = 1.03
"""The same for one that was measured."""

_MOST_TURNS = 64
"""Most evaluations in search of the number of drafts; each lowers it, and a few settle it."""

_SETTLED = 1 + 1e-6
"""Largest ratio of the drafts' time to their window with which the search ends."""


@dataclass(frozen=True)
class Contrast:
    """The scores within prompt groups.

    Attributes:
        live: share of groups whose scores differ, in [0, 1].
        deviation: mean standard deviation of the scores in such a group.
    """

    live: float
    deviation: float

    def signal(self, samples: float) -> float:
        """Return the signal of an iteration of so many samples, those of equal groups included."""
        return self.deviation * math.sqrt(self.live * samples)

    def rolled_out_again(self, random: Contrast, holds: float) -> Contrast:
        """Return the contrast that chosen groups have once newer weights have rolled them out.

        Args:
            random: contrast of groups that nothing chose.
            holds: share r^2 of the choice's gain that holds, in [0, 1].
        """
        variance = holds * self.deviation**2 + (1 - holds) * random.deviation**2
        return Contrast(holds * self.live + (1 - holds) * random.live, math.sqrt(variance))


@dataclass(frozen=True)
class Workload:
    """The settings of an iteration.

    Attributes:
        samples: samples of all prompt groups, P * G.
        most_drafts: drafts wanted: the set number, or every candidate.
        ends_with_training: True if the window's end cuts drafts off; else training's end waits for them.
        trains_equal: True if groups without contrast are trained on too.
        rescored: drafts of the staleness monitor, per draft.
    """

    samples: int
    most_drafts: float
    ends_with_training: bool = True
    trains_equal: bool = False
    rescored: float = 0.0

    def trained(self, contrast: Contrast) -> float:
        """Return the number of samples that are trained on."""
        return self.samples * (1.0 if self.trains_equal else contrast.live)


@dataclass(frozen=True)
class Times:
    """Measured seconds.

    Attributes:
        rollout_s: wall-clock per sample rolled out, on all devices together.
        judging_s: wait of an iteration for its last scores, if it rolls all samples out.
        train_s: wall-clock per trained sample after that.
        draft_s: seconds of one device per draft, its judgement included.
        rest_s: everything else in an iteration without drafts.
        overhead_s: what it takes longer in one with drafts.
        drafters: devices that neither train nor roll out meanwhile.
    """

    rollout_s: float
    judging_s: float
    train_s: float
    draft_s: float
    rest_s: float
    drafters: int
    overhead_s: float = 0.0


@dataclass(frozen=True)
class Prediction:
    """The prediction for a strategy.

    Attributes:
        contrast: contrast of the groups trained on.
        drafts: drafts of an iteration.
        signal: signal of an iteration.
        iteration_s: its seconds.
    """

    contrast: Contrast
    drafts: float
    signal: float
    iteration_s: float

    @property
    def rate(self) -> float:
        """Signal per second; 0 without a signal."""
        return self.signal / self.iteration_s if self.signal else 0.0

    def with_gradients(self, share: float) -> Prediction:
        """Return the prediction if only a share of the samples' steps has a gradient."""
        return replace(self, signal=self.signal * share)


def predict_plain(work: Workload, times: Times, random: Contrast) -> Prediction:
    """Return the prediction without exploration: rollout, scores and training follow each other.

    Args:
        work: settings of an iteration.
        times: measured seconds.
        random: contrast of groups that nothing chose.
    """
    training_s = times.train_s * work.trained(random)
    rollout_s = times.rollout_s * work.samples
    whole_s = times.rest_s + rollout_s + times.judging_s + training_s
    return Prediction(random, 0.0, random.signal(work.samples), whole_s)


def predict_drafting(
    work: Workload,
    times: Times,
    random: Contrast,
    chosen: Callable[[float], Contrast],
    holds: float | None = None,
) -> Prediction:
    """Return the prediction with drafts in the training window.

    Args:
        work: settings of an iteration.
        times: measured seconds; at least one device can draft.
        random: contrast of groups that nothing chose.
        chosen: contrast of the groups chosen from so many drafts.
        holds: share of their gain that holds once they are rolled out again; None if drafts are trained on.
    """
    drafts = work.most_drafts
    found = _with_drafts(drafts, work, times, random, chosen, holds)
    for _ in range(_MOST_TURNS):
        if not work.ends_with_training or found.drafting_s <= found.window_s * _SETTLED:
            break
        drafts *= found.window_s / found.drafting_s
        found = _with_drafts(drafts, work, times, random, chosen, holds)
    beside_s = found.window_s if work.ends_with_training else max(found.window_s, found.drafting_s)
    whole_s = times.rest_s + times.overhead_s + times.rollout_s * found.rolled + beside_s
    return Prediction(found.contrast, drafts, found.contrast.signal(work.samples), whole_s)


@dataclass(frozen=True)
class _WithDrafts:
    """An iteration with a number of drafts: samples rolled out, its window, and what the drafts take."""

    contrast: Contrast
    rolled: float
    window_s: float
    drafting_s: float


def _with_drafts(
    drafts: float,
    work: Workload,
    times: Times,
    random: Contrast,
    chosen: Callable[[float], Contrast],
    holds: float | None,
) -> _WithDrafts:
    contrast = chosen(drafts)
    made, rolled = drafts, float(work.samples)
    if holds is None:
        rolled = max(0.0, rolled - drafts)  # each draft of a group to train on saves the rollout of a sample
    else:
        contrast, made = contrast.rolled_out_again(random, holds), drafts * (1 + work.rescored)
    window_s = times.judging_s * rolled / work.samples + times.train_s * work.trained(contrast)
    return _WithDrafts(contrast, rolled, window_s, made * times.draft_s / times.drafters)


def preferred(rates: Mapping[str, float], present: str, baseline: str, tried: frozenset[str]) -> str:
    """Return the strategy to follow; never one with a lower signal per second than the baseline's.

    Args:
        rates: predicted signal per second, by strategy; strategies that are not possible are left out.
        present: strategy followed now.
        baseline: strategy that explores nothing; always possible.
        tried: strategies that were measured.
    """
    now = rates.get(present, 0.0)
    if now <= rates[baseline]:
        present, now = baseline, rates[baseline]
    # Of equal ones the first.
    best = max(rates, key=lambda name: rates[name] / (TRIED if name in tried else UNTRIED))
    margin = TRIED if best in tried else UNTRIED
    return best if rates[best] >= margin * now and rates[best] > now else present
