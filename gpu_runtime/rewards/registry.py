"""The scorers by name; each is imported only when asked for, with what it depends on."""

from __future__ import annotations

from collections.abc import Callable

from gpu_runtime.rewards.protocol import Scorer
from storage.config.reward import RewardConfig
from storage.errors import ConfigurationError


def _ocr(settings: RewardConfig) -> Scorer:
    from gpu_runtime.rewards.ocr import OcrScorer

    return OcrScorer(page=settings.ocr_layout == "page")


def _shapes(settings: RewardConfig) -> Scorer:
    from gpu_runtime.rewards.shapes import ShapesScorer

    return ShapesScorer()


def _geneval(settings: RewardConfig) -> Scorer:
    from gpu_runtime.rewards.clip_colours import ClipColours
    from gpu_runtime.rewards.geneval_scorer import GenEvalScorer
    from gpu_runtime.rewards.mask2former import Mask2FormerDetector

    return GenEvalScorer(Mask2FormerDetector.load(settings.detector), ClipColours.load(settings.clip))


def _deepseek_ocr(settings: RewardConfig) -> Scorer:
    from gpu_runtime.rewards.deepseek_ocr import DeepseekOcrScorer

    return DeepseekOcrScorer.load(settings.reader, settings.reader_tokens)


def _clip_score(settings: RewardConfig) -> Scorer:
    from gpu_runtime.rewards.clip_score import ClipScorer

    return ClipScorer.load(settings.clip)


def _pick_score(settings: RewardConfig) -> Scorer:
    from gpu_runtime.rewards.pick_score import PickScorer

    return PickScorer.load(settings.pick, settings.pick_processor)


def _jpeg(settings: RewardConfig) -> Scorer:
    from gpu_runtime.rewards.jpeg import JpegScorer

    return JpegScorer()


def _remote(settings: RewardConfig) -> Scorer:
    from gpu_runtime.rewards.remote import RemoteScorer

    return RemoteScorer(settings.remote)


def _sum(settings: RewardConfig) -> Scorer:
    from gpu_runtime.rewards.weighted_sum import WeightedSum

    return WeightedSum(
        {name: (build_scorer(name, settings), weight) for name, weight in settings.parts.items()}
    )


SCORERS: dict[str, Callable[[RewardConfig], Scorer]] = {
    "ocr": _ocr,
    "shapes": _shapes,
    "geneval": _geneval,
    "deepseek-ocr": _deepseek_ocr,
    "clip-score": _clip_score,
    "pick-score": _pick_score,
    "jpeg": _jpeg,
    "remote": _remote,
    "sum": _sum,
}


def build_scorer(name: str, settings: RewardConfig | None = None) -> Scorer:
    """Construct the scorer called `name`.

    Args:
        name: one of `SCORERS`.
        settings: what scorers are told besides, as where their weights lie; None for the defaults.

    Raises:
        ConfigurationError: no scorer has that name, or a setting of it is wrong.
        ModelError: weights that it needs are missing or do not fit.
    """
    if name not in SCORERS:
        raise ConfigurationError(f"unknown reward {name!r}; choose one of: {', '.join(sorted(SCORERS))}")
    return SCORERS[name](settings or RewardConfig())
