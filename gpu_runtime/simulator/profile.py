"""What the simulator needs to know of a workload: seconds of each part, with their evidence. Pure.

A profile says what was measured, and what is a model. Each figure has a relative uncertainty; a simulated
future draws one value of each within it, so that what is not known shows in the width of every answer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.simulator.virtual_time import ticks
from storage.errors import ConfigurationError
from storage.json_file import read_json_model

Evidence = Literal["measured", "published", "modelled"]
"""`measured` on the device that is named, `published` in the document that is named, or `modelled`."""

_REQUIRED = ("step", "decode_s", "score_s", "train_sample_s", "weights_s", "start_s", "regroup_s")
_OPTIONAL = ("evaluation", "driver_s", "opening_s", "loss_s")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Quantity(_Part):
    """A figure and what is known of it."""

    value: float = Field(ge=0, le=1e7)
    """In the unit that the name of the quantity says."""

    evidence: Evidence = "modelled"
    """Where it comes from; `source` says it in words."""

    source: str = ""
    """The run, the document, or the assumption."""

    uncertainty: float = Field(default=0.0, ge=0, le=2)
    """Standard deviation of its logarithm: 0.1 is about a tenth up or down, in two futures of three."""

    def drawn(self, chance: random.Random) -> float:
        """A value that it may have; always takes one draw, so that others do not depend on this one."""
        return self.value * math.exp(self.uncertainty * chance.gauss(0.0, 1.0))


class StepTime(_Part):
    """Seconds of a denoising step."""

    batch: int = Field(ge=1, le=4096)
    """Samples that are denoised together."""

    degree: int = Field(default=1, ge=1, le=64)
    """Devices that share each of them."""

    seconds: float = Field(gt=0, le=1e6)
    """Of one step of the whole batch."""


class Profile(_Part):
    """Seconds of each part of a workload on one kind of device."""

    name: str = Field(min_length=1, max_length=100)
    """What it is asked for by."""

    summary: str = ""
    """The workload in a sentence."""

    device: str = ""
    """Kind of the devices, such as H100."""

    models: tuple[str, ...] = ()
    """The models that it stands for, as `model_key` names them."""

    steps: tuple[StepTime, ...] = Field(min_length=1)
    """A denoising step by batch and degree."""

    step: Quantity
    """What is known of `steps`: its value multiplies them all, and is 1 unless it corrects them."""

    decode_s: Quantity
    """Decoding one image."""

    score_s: Quantity
    """Judging one image, by one scorer."""

    train_sample_s: Quantity
    """One sample's share of an iteration's training, on one device."""

    weights_s: Quantity
    """Taking new weights, each device for itself."""

    start_s: Quantity
    """From an instance's coming to a worker that has loaded its model."""

    regroup_s: Quantity
    """Devices forming a group that shares samples."""

    evaluation: Quantity = Quantity(value=1.0, source="taken as a rollout's")
    """A denoising step of an evaluation, over one of a rollout."""

    driver_s: Quantity = Quantity(value=0.0, source="left out")
    """What an iteration takes beside rollout, reward and training steps: records, publishing the weights."""

    opening_s: Quantity = Quantity(value=0.0, source="left out")
    """From loaded devices to the first phase of a run: its scorers, its tracking."""

    loss_s: Quantity = Quantity(value=0.0, source="left out")
    """From the loss of an instance to the failure of a call to its worker."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        known = [(step.batch, step.degree) for step in self.steps]
        if len(set(known)) < len(known):
            raise ValueError("steps has two times of one batch and degree; keep one")
        if not self.step.value > 0:
            raise ValueError("step.value is 0, but it multiplies all steps; it is 1 unless it corrects them")
        return self

    @property
    def degrees(self) -> tuple[int, ...]:
        """The degrees that it has times of."""
        return tuple(sorted({step.degree for step in self.steps}))

    def step_s(self, batch: int, degree: int = 1) -> float:
        """Seconds of a denoising step; between the batches of the profile along a straight line.

        Beyond them it is in proportion to the batch, as where devices are busy.

        Raises:
            ConfigurationError: it has no time of that degree.
        """
        known = sorted((step.batch, step.seconds) for step in self.steps if step.degree == degree)
        if not known:
            raise ConfigurationError(
                f"profile {self.name} has no time of a step that {degree} devices share; it has degrees "
                f"{', '.join(map(str, self.degrees))}"
            )
        below = [pair for pair in known if pair[0] <= batch]
        above = [pair for pair in known if pair[0] >= batch]
        if not below or not above:
            size, seconds = below[-1] if below else above[0]
            return self.step.value * seconds * batch / size
        (low, low_s), (high, high_s) = below[-1], above[0]
        share = 0.0 if high == low else (batch - low) / (high - low)
        return self.step.value * (low_s + share * (high_s - low_s))

    def times(
        self, batch: int, scorers: int, trainers: int, chance: random.Random | None = None
    ) -> WorkloadTimes:
        """The times of a run.

        Args:
            batch: samples of a batch.
            scorers: processes that judge images.
            trainers: devices that train together; the work is divided evenly over them.
            chance: draws the values; None takes them as they stand.
        """

        def value(quantity: Quantity) -> float:
            return quantity.value if chance is None else quantity.drawn(chance)

        # Always in this order, so that a seed means the same for every policy.
        step_s = self.step_s(batch) * (value(self.step) / self.step.value)
        decode_s, score_s, train_s = map(value, (self.decode_s, self.score_s, self.train_sample_s))
        weights_s, start_s, regroup_s = map(value, (self.weights_s, self.start_s, self.regroup_s))
        driver_s, opening_s, loss_s = map(value, (self.driver_s, self.opening_s, self.loss_s))
        evaluation = value(self.evaluation)
        return WorkloadTimes(
            step=max(1, ticks(step_s)),
            decode=ticks(batch * decode_s),
            score=ticks(score_s / scorers),
            train_sample=ticks(train_s / trainers),
            weights=ticks(weights_s),
            start=ticks(start_s),
            regroup=ticks(regroup_s),
            driver=ticks(driver_s),
            opening=ticks(opening_s),
            loss=ticks(loss_s),
            evaluation_step=max(1, ticks(step_s * evaluation)),
            step_s=step_s,
        )

    @property
    def evidence(self) -> Mapping[Evidence, tuple[str, ...]]:
        """The names of its quantities by where they come from."""
        found: dict[Evidence, tuple[str, ...]] = {}
        for name, quantity in self.quantities.items():
            found[quantity.evidence] = (*found.get(quantity.evidence, ()), name)
        return found

    @property
    def quantities(self) -> dict[str, Quantity]:
        """Its quantities by name; the optional ones only where they were given."""
        given = {name: getattr(self, name) for name in (*_REQUIRED, *_OPTIONAL)}
        return {name: found for name, found in given.items() if name in self.model_fields_set}


@dataclass(frozen=True)
class WorkloadTimes:
    """The times of one simulated run, in ticks.

    Attributes:
        step: a denoising step of a batch.
        decode: decoding a batch.
        score: one image, by all scorers together.
        train_sample: one sample's share of training, by all trainers together.
        weights: a device takes new weights.
        start: from an instance's coming to a loaded worker.
        regroup: a group forms.
        driver: an iteration's end, beside its phases.
        opening: from loaded devices to the first phase.
        loss: from a loss to the moment when the run can know of it.
        evaluation_step: a denoising step of an evaluation's batch; 0 for that of a rollout's.
        step_s: `step` in seconds, by which commits are planned.
    """

    step: int
    decode: int
    score: int
    train_sample: int
    weights: int
    start: int
    regroup: int
    step_s: float
    driver: int = 0
    opening: int = 0
    loss: int = 0
    evaluation_step: int = 0

    def step_of(self, kind: RequestKind) -> int:
        """Ticks of a denoising step of a batch of a kind."""
        return self.evaluation_step or self.step if kind is RequestKind.EVALUATE else self.step


def read_profile(path: Path) -> Profile:
    """A profile from a JSON file.

    Raises:
        ConfigurationError: no such file, no JSON, or a figure is missing or out of range.
    """
    return read_json_model(path, "profile", Profile, "docs/what-if.md")
