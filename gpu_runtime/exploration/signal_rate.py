"""Signal per second of an iteration, predicted for each strategy from contrast and times; pure.

Signal. An update has a fixed length (AdamW), so its benefit depends on the signal-to-noise ratio of its
gradient. With advantages normalised within groups, a sample's signal is the deviation of its group's
scores, and noise averages out over samples. So an iteration has the signal

    mean deviation of the groups that have any * sqrt(number of samples in them)

The deviation is the gain per sample from choosing by contrast (PODS, arXiv 2504.13818). The square root
comes from averaging a stochastic gradient's noise (McCandlish et al., An empirical model of large-batch
training, arXiv 1812.06162, below the critical batch size). Only ratios of signals are meaningful.

Time. Rollout, waiting for the last scores, and training follow each other; drafts are made during the last
two. More trained groups lengthen the window, which then holds more drafts, which give more groups with
contrast to train on. Drafts used for training shorten it, because fewer scores are awaited. So the number
of drafts must fit the window that it causes; if several do, the largest is used.

Judging. Only judged drafts count, and scorers judge the rollout first. If training waits for the rollout's
scores, scorers judge as fast as during that wait, and drafts get the rest of the window.

Staleness. Kept groups that are rolled out again lose part of the variance they were chosen for: if old and
new scores correlate by r, the variance is r^2 * kept + (1 - r^2) * random (linear regression).

Units: seconds; deviations in units of the score; a sample or draft is one image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

UNTRIED = 1.1
"""Ratio to the current strategy's signal per second at which to prefer an unmeasured strategy."""

TRIED = 1.03
"""The same for a measured strategy."""

_MOST_TURNS = 64
"""Most evaluations in each half of the search for the number of drafts; a few suffice."""

_SETTLED = 1 + 1e-6
"""Ratio of two numbers of drafts below which they are equal."""


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
        """Return the signal of an iteration with this many samples, including groups without contrast."""
        return self.deviation * math.sqrt(self.live * samples)

    def rolled_out_again(self, random: Contrast, holds: float) -> Contrast:
        """Return the contrast that chosen groups keep when newer weights roll them out.

        Args:
            holds: share r^2 of the choice's gain that survives, in [0, 1].
        """
        variance = holds * self.deviation**2 + (1 - holds) * random.deviation**2
        return Contrast(holds * self.live + (1 - holds) * random.live, math.sqrt(variance))


@dataclass(frozen=True)
class Workload:
    """The settings of an iteration.

    Attributes:
        samples: samples of all prompt groups, P * G.
        most_drafts: drafts wanted: the configured number, or every candidate.
        ends_with_training: True if the window's end cuts drafts off; otherwise the end waits for them.
        trains_equal: True if the run also trains on groups without contrast.
        rescored: drafts of the staleness monitor, per draft.
        saving: most rollouts saved by a draft used for training: trained prompts per explored prompt.
    """

    samples: int
    most_drafts: float
    ends_with_training: bool = True
    trains_equal: bool = False
    rescored: float = 0.0
    saving: float = 1.0

    def trained(self, contrast: Contrast) -> float:
        """Return the number of samples to train on."""
        return self.samples * (1.0 if self.trains_equal else contrast.live)


@dataclass(frozen=True)
class Times:
    """Measured seconds.

    Attributes:
        rollout_s: wall-clock per sample rolled out, on all devices together.
        judging_s: wait for the last scores, per sample rolled out.
        train_s: wall-clock of training per trained sample.
        draft_s: seconds of one device per draft, including its judgement.
        rest_s: everything else in an iteration without drafts.
        drafters: devices that neither train nor roll out in the window.
        overhead_s: extra time of everything else in an iteration with drafts.
        beside_s: training before the last score, per sample rolled out.
        spot_train_s, spot_beside_s: `train_s` and `beside_s` if spot devices also train; None and 0 until
            measured.
    """

    rollout_s: float
    judging_s: float
    train_s: float
    draft_s: float
    rest_s: float
    drafters: float
    overhead_s: float = 0.0
    beside_s: float = 0.0
    spot_train_s: float | None = None
    spot_beside_s: float = 0.0

    def training_left_s(self, trained: float, rolled: float) -> float:
        """Return the training of this many samples that remains after the wait for the last scores."""
        return max(0.0, self.train_s * trained - self.beside_s * rolled)


@dataclass(frozen=True)
class Prediction:
    """The prediction for a strategy."""

    contrast: Contrast
    drafts: float
    signal: float
    iteration_s: float

    @property
    def rate(self) -> float:
        """Signal per second; 0 without a signal."""
        return self.signal / self.iteration_s if self.signal else 0.0


def predict_plain(work: Workload, times: Times, random: Contrast) -> Prediction:
    """Return the prediction without exploration: rollout, scoring and training in sequence.

    Args:
        random: contrast of unchosen groups.
    """
    window_s = times.judging_s * work.samples + times.training_left_s(work.trained(random), work.samples)
    whole_s = times.rest_s + times.rollout_s * work.samples + window_s
    return Prediction(random, 0.0, random.signal(work.samples), whole_s)


def with_other_trainers(train_s: float, shards: int, before: int, after: int) -> float:
    """Return the seconds of training on another number of devices; the one with most shards decides.

    Args:
        train_s: seconds on `before` devices.
        shards: shards that they divide among them.
        before, after: numbers of devices, from 1 to the number of shards.
    """
    return train_s * math.ceil(shards / after) / math.ceil(shards / before)


def predict_drafting(
    work: Workload,
    times: Times,
    random: Contrast,
    chosen: Callable[[float], Contrast],
    holds: float | None = None,
) -> Prediction:
    """Return the prediction with drafts in the training window.

    Args:
        times: measured seconds; at least one device can draft.
        chosen: contrast of the groups chosen from a number of drafts.
        holds: share of their gain that survives a new rollout; None if the run trains on drafts.
    """

    def made(drafts: float) -> tuple[Prediction, float]:
        """Return the prediction, and how many drafts the window that they cause could make and judge."""
        contrast, each, rolled = chosen(drafts), 1.0, float(work.samples)
        if holds is None:
            rolled = max(0.0, rolled - drafts * work.saving)
        else:
            contrast, each = contrast.rolled_out_again(random, holds), 1 + work.rescored
        waiting_s = times.judging_s * rolled
        left_s = times.training_left_s(work.trained(contrast), rolled)
        window_s = waiting_s + left_s
        made_s, judged_s = each * times.draft_s / times.drafters, each * times.judging_s
        limits = (window_s, made_s), (left_s, judged_s)
        fitting = min((whole_s / each_s for whole_s, each_s in limits if each_s), default=math.inf)
        beside_s = window_s
        if not work.ends_with_training:  # it waits until the last draft is judged
            beside_s = max(window_s, drafts * made_s, waiting_s + drafts * judged_s)
        iteration_s = times.rest_s + times.overhead_s + times.rollout_s * rolled + beside_s
        return Prediction(contrast, drafts, contrast.signal(work.samples), iteration_s), fitting

    drafts = work.most_drafts
    if work.ends_with_training:
        drafts = _number_that_fits(lambda number: made(number)[1], drafts)
    return made(drafts)[0]


def _number_that_fits(fitting: Callable[[float], float], most: float) -> float:
    """Return the largest number of drafts found that fits the window it causes.

    Args:
        fitting: returns how many drafts fit the window caused by a number of drafts.
    """
    too_many, drafts = most, most
    for _ in range(_MOST_TURNS):
        held = fitting(drafts)
        if drafts <= held * _SETTLED:
            break
        too_many, drafts = drafts, held
    # Fewer drafts may lengthen the window; then a larger number also fits.
    for _ in range(_MOST_TURNS):
        if too_many <= drafts * _SETTLED:
            break
        middle = (too_many + drafts) / 2
        if middle <= fitting(middle):
            drafts = middle
        else:
            too_many = middle
    return drafts


def preferred(rates: Mapping[str, float], present: str, baseline: str, tried: frozenset[str]) -> str:
    """Return the strategy to follow, never one with less signal per second than the baseline.

    Args:
        rates: predicted signal per second, by possible strategy.
        baseline: strategy without exploration; always possible.
    """
    now = rates.get(present, 0.0)
    if now <= rates[baseline]:
        present, now = baseline, rates[baseline]
    # Ties go to the first.
    best = max(rates, key=lambda name: rates[name] / (TRIED if name in tried else UNTRIED))
    margin = TRIED if best in tried else UNTRIED
    return best if rates[best] >= margin * now and rates[best] > now else present
