"""What the project's own scorers read of `[reward.options]`; imports none of them."""

from __future__ import annotations

from typing import Any, Literal, Self, TypeGuard

from pydantic import Field, model_validator

from storage.config.plugins import ModelName, ProcessorName
from storage.config.section import Section

PART_RULES = ("weight", "threshold", "gate")
"""What a part's table in a sum says of the part, beside the scorer's own options."""


class OcrOptions(Section):
    """Of `ocr`."""

    layout: Literal["line", "page"] = "line"
    """What an image is taken for: one `line`, as the embedded model's signs are, or a `page` with text
    anywhere, as photographs are."""


class GenEvalOptions(Section):
    """Of `geneval`."""

    detector: ModelName = "facebook/mask2former-swin-small-coco-instance"
    """Finds objects: a Mask2Former with COCO's classes."""

    clip: ModelName = "openai/clip-vit-large-patch14"
    """Tells colours apart: a CLIP."""


class DeepseekOcrOptions(Section):
    """Of `deepseek-ocr`."""

    reader: ModelName = "deepseek-community/DeepSeek-OCR-2"
    """The model that reads."""

    tokens: int = Field(default=128, ge=1, le=8192)
    """Most tokens that are read from an image."""


class ClipScoreOptions(Section):
    """Of `clip-score`."""

    clip: ModelName = "openai/clip-vit-large-patch14"
    """The CLIP that judges."""


class PickScoreOptions(Section):
    """Of `pick-score`."""

    model: ModelName = "yuvalkirstain/PickScore_v1"
    """The CLIP that judges."""

    processor: ProcessorName = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
    """The CLIP that it was trained from, which has the tokenizer and the picture's size."""


class RemoteOptions(Section):
    """Of `remote`; docs/rewards.md says what is sent and what must come back."""

    url: str
    """Where images are posted to, as in http://judge:8000/score."""

    timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """Longest time of a request, from connecting to the last byte of the answer, in seconds."""

    attempts: int = Field(default=4, ge=1, le=20)
    """Requests for the same images before they have an error."""

    backoff_s: float = Field(default=0.5, ge=0, le=600)
    """Wait before the second attempt, in seconds; each next one waits twice as long, up to a minute."""

    images_a_request: int = Field(default=8, ge=1, le=256)
    """Most images of one request."""

    queue: int = Field(default=4, ge=1, le=64)
    """Most requests under way at once, from each scorer process; what is more waits."""


class SumOptions(Section):
    """Of `sum`."""

    parts: dict[str, Any] = Field(min_length=1)
    """Scorers by name. Each has a weight above 0, or a table of its `weight` and its own options. Weights
    need not sum to 1: the score is divided by their sum. In its table, `threshold` is the value below which
    a part counts as 0, and `gate` says what other parts must reach for it to count, as in
    `gate = { ocr = 0.8 }`."""

    normalise: Literal["none", "group"] = "none"
    """`group`: what is learned from is the weighted sum of the parts after each was normalised in its prompt
    group (GDPO, arXiv 2601.05242), so that a part that varies little is not drowned by one that varies
    much. Scores stay the weighted sum of the values."""

    @model_validator(mode="after")
    def _every_part_can_count(self) -> Self:
        for name in self.parts:
            weight, threshold, gate = (self.rule(name).get(key) for key in PART_RULES)
            if not _is_number(weight) or not 0 < weight < 1e9:
                raise ValueError(
                    f"reward.options.parts.{name} weighs {weight!r}; a weight must be a number above 0: "
                    "leave the part out, or give it one"
                )
            if threshold is not None and not _is_score(threshold):
                raise ValueError(
                    f"reward.options.parts.{name}.threshold is {threshold!r}; it must be a score, in [0, 1]"
                )
            if gate is not None and not self._can_be_met(name, gate):
                others = (
                    ", ".join(other for other in self.parts if other != name) or "none: name a second one"
                )
                raise ValueError(
                    f"reward.options.parts.{name}.gate is {gate!r}; it must be a table of other parts and "
                    f"the score that each must reach, in [0, 1]; the other parts are {others}"
                )
        return self

    def rule(self, name: str) -> dict[str, Any]:
        """How a part counts: those of `PART_RULES` that are set."""
        part = self.parts[name]
        if not isinstance(part, dict):
            return {"weight": part}
        return {key: part[key] for key in PART_RULES if key in part}

    def options(self, name: str) -> dict[str, Any]:
        """A part's own options."""
        part = self.parts[name]
        return {k: v for k, v in part.items() if k not in PART_RULES} if isinstance(part, dict) else {}

    def _can_be_met(self, name: str, gate: object) -> bool:
        if not isinstance(gate, dict):
            return False
        return all(other in self.parts and other != name and _is_score(at) for other, at in gate.items())


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_score(value: object) -> bool:
    return _is_number(value) and 0 <= value <= 1
