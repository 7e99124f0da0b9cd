"""The scorers by name; each is imported only when asked for, with what it depends on."""

from __future__ import annotations

from collections.abc import Callable

from gpu_runtime.rewards.protocol import Scorer
from storage.errors import ConfigurationError


def _ocr() -> Scorer:
    from gpu_runtime.rewards.ocr import OcrScorer

    return OcrScorer()


def _shapes() -> Scorer:
    from gpu_runtime.rewards.shapes import ShapesScorer

    return ShapesScorer()


SCORERS: dict[str, Callable[[], Scorer]] = {"ocr": _ocr, "shapes": _shapes}


def build_scorer(name: str) -> Scorer:
    """Construct the scorer called `name`.

    Raises:
        ConfigurationError: no scorer has that name.
    """
    if name not in SCORERS:
        raise ConfigurationError(f"unknown reward {name!r}; choose one of: {', '.join(sorted(SCORERS))}")
    return SCORERS[name]()
