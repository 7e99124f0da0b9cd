"""The `[reward.options]` of the project's own scorers; imports no scorer."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterator
from typing import Any, Literal, TypeGuard

from pydantic import Field, field_validator, model_validator

from gpu_runtime.rewards.protocol import CALL_LIMIT_S, MOST_IMAGES_A_CALL
from storage.config.plugins import ModelName, ProcessorName
from storage.config.section import OptionValues, Section

VLM_TEMPLATE = (
    "This image was generated from the prompt: {prompt}\n"
    "How well does it show what the prompt asks for, and how good does it look? Answer with one number from "
    "0 (not at all) to 10 (perfectly) and nothing else."
)

_OF_PARSERS = {
    "pattern": ("number",),
    "field": ("json",),
    "lowest": ("number", "json"),
    "highest": ("number", "json"),
}
"""Options of `vlm` that only some parsers read."""

JUDGE_URL = "http://127.0.0.1:8190/score"
"""Address of a judge that the run starts, unless another one is given."""

RESTART_S = 60.0
"""Most seconds until a judge restarted by its run accepts connections; it loads its model after that."""

LONGEST_WAIT_S = 60.0
"""Longest wait between two requests to a server, in seconds."""

_OWN_FIELDS = frozenset({"model", "messages", "stream", "n", "logprobs", "top_logprobs"})
"""Fields of a `vlm` request that reading the answer depends on."""

PART_RULES = ("weight", "threshold", "gate")
"""Keys of a part's table in a sum that are not options of the scorer itself."""


class OcrOptions(Section):
    """Options of `ocr`."""

    layout: Literal["line", "page"] = "line"
    """How an image is read: as one `line`, like the embedded model's signs, or as a `page` with text
    anywhere, like photographs."""


class GenEvalOptions(Section):
    """Options of `geneval`."""

    detector: ModelName = "facebook/mask2former-swin-small-coco-instance"
    """The detector of objects: a Mask2Former with COCO's classes."""

    clip: ModelName = "openai/clip-vit-large-patch14"
    """The classifier of colours: a CLIP."""


class DeepseekOcrOptions(Section):
    """Options of `deepseek-ocr`."""

    reader: ModelName = "deepseek-community/DeepSeek-OCR-2"
    """The model that reads."""

    tokens: int = Field(default=128, ge=1, le=8192)
    """Most tokens that are read from an image."""


class ClipScoreOptions(Section):
    """Options of `clip-score`."""

    clip: ModelName = "openai/clip-vit-large-patch14"
    """The CLIP that judges."""


class PickScoreOptions(Section):
    """Options of `pick-score`."""

    model: ModelName = "yuvalkirstain/PickScore_v1"
    """The CLIP that judges."""

    processor: ProcessorName = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
    """The CLIP that it was trained from, which has the tokenizer and the picture size."""


class ServerOptions(Section):
    """Options of scorers that ask a server."""

    url: str
    """Address of the server. `remote`: the address that images are posted to, as in http://judge:8000/score;
    `vlm`: the base address of the OpenAI-compatible interface, as in http://judge:8000/v1."""

    timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """Time limit of a request, from connecting to the last byte of the answer, in seconds."""

    attempts: int = Field(default=4, ge=1, le=20)
    """Most requests for the same images before they get an error."""

    backoff_s: float = Field(default=0.5, ge=0, le=600)
    """Wait before the second attempt, in seconds; each later one waits twice as long, up to a minute."""

    queue: int = Field(default=4, ge=1, le=64)
    """Most requests under way at once, from each scorer process; further ones wait."""

    @property
    def most_in_a_request(self) -> int:
        """Most images of one request."""
        return 1

    @property
    def restart_s(self) -> float:
        """Seconds that a restarting server may refuse connections without costing an attempt."""
        return 0.0

    @property
    def longest_call_s(self) -> float:
        """Most seconds until a scorer has answers or errors for all images of a call."""
        waits = (min(self.backoff_s * 2**attempt, LONGEST_WAIT_S) for attempt in range(self.attempts - 1))
        rounds = math.ceil(MOST_IMAGES_A_CALL / self.most_in_a_request / self.queue)
        return rounds * (self.attempts * self.timeout_s + sum(waits) + self.restart_s)

    def contradictions(self) -> Iterator[str]:
        """Yield contradictions between settings: requests that end after the scorer counts as hung."""
        if self.longest_call_s >= CALL_LIMIT_S:
            yield (
                f"reward.options.attempts = {self.attempts} with timeout_s = {self.timeout_s:g} may take "
                f"{self.longest_call_s:.0f} s for {MOST_IMAGES_A_CALL} images, and a scorer counts as hung "
                f"after {CALL_LIMIT_S:.0f} s; lower one of them, or raise reward.options.queue"
            )


class RemoteOptions(ServerOptions):
    """Options of `remote`; docs/reference/rewards.md describes requests and answers."""

    images_a_request: int = Field(default=8, ge=1, le=256)
    """Most images of one request."""

    judge: str = ""
    """Command of a judge that the run starts beside itself, to serve at `url` (http://127.0.0.1:8190/score if
    left out), and ends with itself: a file that begins with its dependencies, and its arguments, as in
    `examples/judges/hpsv3.py`."""

    @property
    def most_in_a_request(self) -> int:
        """Most images of one request."""
        return self.images_a_request

    @property
    def restart_s(self) -> float:
        """See `ServerOptions.restart_s`: a run restarts its own judge, and no other server."""
        return RESTART_S if self.judge else 0.0

    @field_validator("judge")
    @classmethod
    def _is_found_from_any_folder(cls, judge: str) -> str:
        try:
            words = shlex.split(judge)
        except ValueError as error:
            raise ValueError(f"reward.options.judge = {judge!r} is not a command: {error}") from error
        if judge and not words:
            raise ValueError(f"reward.options.judge = {judge!r} is blank; name a judge, or leave it out")
        found = [os.path.expanduser(word) for word in words]
        files = [
            os.path.isfile(one) and (place == 0 or one.endswith(".py")) for place, one in enumerate(found)
        ]
        named = zip(words, found, files, strict=True)
        return shlex.join(os.path.abspath(one) if is_file else word for word, one, is_file in named)

    @model_validator(mode="before")
    @classmethod
    def _judge_has_an_address(cls, values: Any) -> Any:
        judged = isinstance(values, dict) and values.get("judge") and "url" not in values
        return {**values, "url": JUDGE_URL} if judged else values


class VlmOptions(ServerOptions):
    """Options of `vlm`; docs/reference/rewards.md describes requests and how answers are read."""

    model: str = Field(min_length=1)
    """Name of the model on the server."""

    template: str = Field(default=VLM_TEMPLATE, min_length=1)
    """The question about the image; `{prompt}` stands for the image's prompt."""

    parser: Literal["number", "json", "yes-no"] = "number"
    """How the answer is read: `number`, the only number in it; `json`, a number in a JSON object; `yes-no`,
    the probability of yes against no where the server gives log-probabilities, else the word."""

    pattern: str = ""
    """For `number`: a regular expression whose only group is the number, where an answer has several, as in
    `Final Score: ([\\d.]+)`."""

    field: str = Field(default="score", min_length=1)
    """For `json`: the number's key; a dot steps into an inner object, as in `scores.alignment`."""

    lowest: float = 0.0
    """The model's number that scores 0. A lower one is no answer: the model is asked again, then an error."""

    highest: float = 10.0
    """The model's number that scores 1. A higher one is no answer."""

    exact_at: float | None = Field(default=None, ge=0, le=1)
    """Least score of an exact image; by default 1, and 0.5 for `yes-no`."""

    tokens: int = Field(default=64, ge=1, le=8192)
    """Most tokens of an answer. One that is cut off is no answer, except for `yes-no`."""

    request: OptionValues = Field(default={})
    """Fields added to every request, which may replace the scorer's own (`temperature`: 0), as in
    `{ seed = 1 }`."""

    key_variable: str = ""
    """Environment variable that holds the server's key, such as OPENAI_API_KEY; empty if it needs none."""

    usd_per_image: float = Field(default=0.0, ge=0, le=1000)
    """Price per answer (one for a whole clip), in dollars; one that cannot be read is paid for, too."""

    def contradictions(self) -> Iterator[str]:
        """Yield contradictions between settings: answers that could not be read."""
        yield from super().contradictions()
        for name, parsers in _OF_PARSERS.items():
            if name in self.model_fields_set and self.parser not in parsers:
                yield (
                    f"reward.options.{name} has no effect if reward.options.parser is {self.parser!r}; "
                    f"leave it out, or use parser={parsers[0]}"
                )
        asked_otherwise = self.parser != "number" or (self.lowest, self.highest) != (0.0, 10.0)
        if asked_otherwise and "template" not in self.model_fields_set:
            yield (
                "the default reward.options.template asks for a number from 0 to 10; give one that asks for "
                "what reward.options.parser, lowest and highest expect"
            )
        if not self.lowest < self.highest:
            yield (
                f"reward.options.lowest is {self.lowest:g}, which is not below reward.options.highest = "
                f"{self.highest:g}; give the model's scale, the worst number first"
            )
        unknown = [name for name in re.findall(r"{(\w*)}", self.template) if name != "prompt"]
        if unknown:
            yield f"reward.options.template has {{{unknown[0]}}}; only {{prompt}} is filled in"
        own = sorted(_OWN_FIELDS & self.request.keys())
        if own:
            yield f"reward.options.request has {own[0]!r}, which the scorer sets itself; leave it out"
        try:
            groups = re.compile(self.pattern).groups if self.pattern else 1
        except re.error as error:
            yield f"reward.options.pattern is not a regular expression: {error}"
            return
        if groups != 1:
            yield (
                f"reward.options.pattern has {groups} groups; put only the number in parentheses, and use "
                "(?:...) for others"
            )


class FunctionOptions(Section):
    """Options of a plain function."""

    scale: Literal["identity", "sigmoid"] | tuple[float, float] = "identity"
    """How its numbers become scores in [0, 1]: unchanged; by 1 / (1 + exp(-x)); or linearly from
    [lowest, highest], with numbers beyond clipped."""

    def contradictions(self) -> Iterator[str]:
        """Yield contradictions between settings: bounds out of order."""
        if isinstance(self.scale, tuple) and not self.scale[0] < self.scale[1]:
            yield f"reward.options.scale is {list(self.scale)}; the first must be below the second"


class SumOptions(Section):
    """Options of `sum`."""

    parts: dict[str, Any] = Field(min_length=1)
    """Scorers by name. Each has a weight above 0, or a table of its `weight` and its own options. Weights
    need not sum to 1: the score is divided by their sum. In its table, `threshold` is the value below which
    a part counts as 0, and `gate` has the values that other parts must reach for it to count, as in
    `gate = { ocr = 0.8 }`."""

    normalise: Literal["none", "group"] = "none"
    """`group`: the signal is the weighted sum of the parts after each was normalised in its prompt
    group (GDPO, arXiv 2601.05242), so that a part that varies little is not drowned out by one that varies
    much. Scores stay the weighted sum of the values."""

    def contradictions(self) -> Iterator[str]:
        """Yield contradictions between settings: parts that could not count."""
        for name in self.parts:
            weight, threshold, gate = (self.rule(name).get(key) for key in PART_RULES)
            if not _is_number(weight) or not 0 < weight < 1e9:
                yield (
                    f"reward.options.parts.{name} weighs {weight!r}; a weight must be a number above 0: "
                    "leave the part out, or give it one"
                )
            if threshold is not None and not _is_score(threshold):
                yield (
                    f"reward.options.parts.{name}.threshold is {threshold!r}; it must be a score, in [0, 1]"
                )
            can_be_met = isinstance(gate, dict) and all(
                other in self.parts and other != name and _is_score(at) for other, at in gate.items()
            )
            if gate is not None and not can_be_met:
                others = (
                    ", ".join(other for other in self.parts if other != name) or "none: name a second one"
                )
                yield (
                    f"reward.options.parts.{name}.gate is {gate!r}; it must be a table of other parts and "
                    f"the score that each must reach, in [0, 1]; the other parts are {others}"
                )

    def rule(self, name: str) -> dict[str, Any]:
        """Return a part's rules: those of `PART_RULES` that are set."""
        part = self.parts[name]
        if not isinstance(part, dict):
            return {"weight": part}
        return {key: part[key] for key in PART_RULES if key in part}

    def options(self, name: str) -> dict[str, Any]:
        """Return a part's own options."""
        part = self.parts[name]
        return {k: v for k, v in part.items() if k not in PART_RULES} if isinstance(part, dict) else {}


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_score(value: object) -> bool:
    return _is_number(value) and 0 <= value <= 1
