"""How training changes the look of held-out images, when that counts as hacking, and a run's alarms.

Each image is compared with the untouched model's for the same prompt and seed. The unit is the prompt, as in
`figures.py`: prompts are resampled, with a fixed seed.

Shape suffixes: N prompts, R resamples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from storage.config.run_config import RunConfig
    from storage.record.records import JudgedImage

SCORE = "score"
JUDGE = "judge"
"""The name of a second judge's score among an image's figures."""

PART = "part_"
"""The prefix of the names of a score's parts."""

LEAST_KL_WEIGHT = 0.04
"""The weight that the first alarm sets if the current one is lower: Flow-GRPO's for OCR and GenEval."""

LEAST_PROMPTS = 8
"""The least number of prompts for a clear change."""

_RESAMPLES = 2_000
_LEAST_RESAMPLES = 200
_SEED = 22_006
_CELLS = 8_000_000
"""The most resampling weights in memory: 32 MB; with very many prompts there are fewer resamples."""

Group = Literal["truth", "look", "variety", "judge"]


@dataclass(frozen=True)
class QualityFigure:
    """The meaning of a figure of an image.

    Attributes:
        title: title for people, with its unit.
        group: `truth` is the distance to the renderer's picture, `look` and `variety` hint only.
        worse: 1 if more is worse, -1 if less is, 0 if neither is.
        tolerance: fraction of the untouched model's mean by which it may worsen.
        least: value that the fraction is taken of if the mean is smaller.
        of_whole: True if it covers the whole picture. A region's figure shows where a picture has changed but
            never decides: a larger drawing makes the background worse and the drawing better.
    """

    title: str
    group: Group
    worse: int = 0
    tolerance: float = 0.25
    least: float = 1e-9
    of_whole: bool = True


QUALITY: Mapping[str, QualityFigure] = {
    JUDGE: QualityFigure("Second judge (0 to 1)", "judge", -1, 0.0, 0.05),
    "truth_distance": QualityFigure("Distance to the rendered picture (1 - SSIM)", "truth", 1, 0.1, 0.02),
    "truth_gradients": QualityFigure("Edges against the rendered ones", "truth", 1, 0.1, 0.002),
    "truth_background": QualityFigure(
        "Background against the rendered one (RMS)", "truth", 1, 0.1, 0.01, of_whole=False
    ),
    "truth_drawn": QualityFigure(
        "Glyphs or shapes against the rendered ones (RMS)", "truth", 1, 0.1, 0.01, of_whole=False
    ),
    "brightness": QualityFigure("Brightness (0 to 1)", "look"),
    "dark": QualityFigure("Dark pixels (share)", "look", 1, 0.25, 0.2),
    "contrast": QualityFigure("Contrast (deviation of the brightness)", "look", -1),
    "edges": QualityFigure("Edges (share of the pixels)", "look", -1),
    "colours": QualityFigure("Colours (entropy, bits)", "look", -1),
    "grain": QualityFigure("Grain (deviation of the noise)", "look", 1, 0.25, 0.004),
    "file_bits": QualityFigure("JPEG file (bits a pixel)", "look"),
    "diversity_within": QualityFigure("Variety within a prompt (RMS of the latents)", "variety", -1),
    "diversity_across": QualityFigure("Variety across prompts (RMS of the latents)", "variety", -1),
}
"""The figures by name, in display order."""


@dataclass(frozen=True)
class FigureChange:
    """A figure of the same held-out images before training and now.

    Attributes:
        before, after: means over the prompts.
        low, high: bounds of the 95 % interval of `after - before`, infinite with too few prompts.
        prompts: number of prompts compared.
    """

    name: str
    before: float
    after: float
    low: float
    high: float
    prompts: int

    @property
    def is_clear(self) -> bool:
        """True if the interval excludes zero change."""
        return self.low > 0 or self.high < 0

    @property
    def worsening(self) -> float:
        """The fraction of its start by which it worsened; below 0 if better, 0 if neither is worse."""
        figure = QUALITY.get(self.name)
        if figure is None:
            return 0.0
        return figure.worse * (self.after - self.before) / max(abs(self.before), figure.least)

    @property
    def is_worse(self) -> bool:
        """True if it is clearly worse, and by more than is tolerated."""
        figure = QUALITY.get(self.name)
        return figure is not None and self.is_clear and self.worsening > figure.tolerance


@dataclass(frozen=True)
class QualityVerdict:
    """A judgement of a run by its images and its score; `others` are the figures that no reward sees."""

    score: FigureChange
    others: tuple[FigureChange, ...]

    @property
    def worse(self) -> tuple[FigureChange, ...]:
        """The clearly worse figures. If the truth is known it decides, with the judge; the rest are hints."""
        whole = [change for change in self.others if QUALITY[change.name].of_whole]
        groups = {QUALITY[change.name].group for change in whole}
        deciding = {"truth", "judge"} if "truth" in groups else groups
        return tuple(c for c in whole if c.is_worse and QUALITY[c.name].group in deciding)

    @property
    def is_hacking(self) -> bool:
        """True if the score rose by more than its interval, and the images got worse by more than theirs."""
        return self.score.low > 0 and bool(self.worse)

    @property
    def in_words(self) -> str:
        """The score's change and the worse figures, as text."""
        parts = [f"{QUALITY[c.name].title} {c.before:.3g} -> {c.after:.3g}" for c in self.worse]
        return "; ".join([f"Score {self.score.before:.3f} -> {self.score.after:.3f}", *parts])


@dataclass(frozen=True)
class AlarmCourse:
    """The alarms raised by a run's evaluations so far.

    Attributes:
        alarms: number of evaluations that raised the alarm.
        sounding: True if the newest evaluation did.
        sound: iteration of the newest evaluation without an alarm or a collapse of the score; 0 is the
            untouched model.
        returned_to: that iteration, once an alarm has led back to it; None before.
        unsound: iteration of the newest evaluation with either; 0 before.
    """

    alarms: int = 0
    sounding: bool = False
    sound: int = 0
    returned_to: int | None = None
    unsound: int = 0

    def after(self, iteration: int, is_hacking: bool, has_collapsed: bool = False) -> AlarmCourse:
        """Return the course after another evaluation and the response to it.

        Args:
            has_collapsed: True if its score is clearly below that of the last sound evaluation.
        """
        if not is_hacking and has_collapsed:
            return replace(self, sounding=False, unsound=iteration)
        if not is_hacking:
            return replace(self, sounding=False, sound=iteration, returned_to=None)
        return replace(self, alarms=self.alarms + 1, sounding=True, returned_to=self.sound, unsound=iteration)

    def kl_weight(self, config: RunConfig) -> float:
        """Return the weight of the KL with `evaluation.on_alarm=kl`: each alarm doubles it."""
        configured = config.algorithm.kl_weight
        if not self.alarms:
            return configured
        return max(configured * 2**self.alarms, LEAST_KL_WEIGHT * 2 ** (self.alarms - 1))


def mean_figures(figures: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each figure of `QUALITY` over the images with it; `figures` has one item each."""
    values: dict[str, list[float]] = {}
    for of_image in figures:
        for name, value in of_image.items():
            values.setdefault(name, []).append(value)
    return {name: statistics.fmean(values[name]) for name in QUALITY if name in values}


def image_changes(pairs: Iterable[tuple[JudgedImage, JudgedImage]]) -> list[FigureChange]:
    """Return the changes of the figures of `QUALITY` between images of the same prompt and seed."""
    rows = [
        (late.prompt, late.seed_index, name, value, late.figures[name])
        for early, late in pairs
        for name, value in early.figures.items()
        if name in late.figures
    ]
    import pandas as pd

    frame = pd.DataFrame(rows, columns=["prompt", "seed_index", "name", "before", "after"])
    return figure_changes(frame, QUALITY)


def quality_verdict(pairs: pd.DataFrame) -> QualityVerdict | None:
    """Compare an evaluation's images with the untouched model's; None without a score or figures of both.

    Args:
        pairs: columns prompt (its text), seed_index, name, before, after; the score among the names.
    """
    changes = {change.name: change for change in figure_changes(pairs, [SCORE, *QUALITY])}
    score = changes.pop(SCORE, None)
    return None if score is None or not changes else QualityVerdict(score, tuple(changes.values()))


def figure_changes(pairs: pd.DataFrame, names: Iterable[str]) -> list[FigureChange]:
    """Return the changes of these figures, in this order; a figure without pairs is left out.

    Args:
        pairs: columns prompt (its text; rows with the same one are one prompt), seed_index, name, before,
            after.
    """
    changes = []
    for name in names:
        of_name = pairs.loc[pairs["name"] == name]
        if of_name.empty:
            continue
        means = of_name.groupby("prompt", sort=True)[["before", "after"]].mean()
        before_N, after_N = (means[side].to_numpy(float) for side in ("before", "after"))
        low, high = -math.inf, math.inf
        if len(before_N) >= LEAST_PROMPTS:  # by drawing prompts with replacement
            low, high = map(
                float, np.quantile(_weights(len(before_N)) @ (after_N - before_N), (0.025, 0.975))
            )
        before, after = float(before_N.mean()), float(after_N.mean())
        changes.append(FigureChange(name, before, after, low, high, len(before_N)))
    return changes


@lru_cache(maxsize=2)
def _weights(count: int) -> np.ndarray:
    """Return the weight of each prompt in each resample: float32, shape (R, N); the same for all figures."""
    resamples = max(_LEAST_RESAMPLES, min(_RESAMPLES, _CELLS // count))
    draw = np.random.default_rng([_SEED, count])
    drawn = (np.bincount(draw.integers(count, size=count), minlength=count) for _ in range(resamples))
    return np.stack([counts.astype(np.float32) / count for counts in drawn])
