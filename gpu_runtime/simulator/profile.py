"""What the simulator needs to know of a workload: seconds of each part, with their evidence. Pure.

A profile says what was measured, and what is a model. Each figure has a relative uncertainty; a simulated
future draws one value of each within it, so that what is not known shows in the width of every answer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from gpu_runtime.scheduling.requests import RequestKind
from gpu_runtime.simulator.virtual_time import TICKS_PER_S, ticks
from storage.errors import ConfigurationError
from storage.record.records import Market
from storage.text import read_json_model

Evidence = Literal["measured", "published", "modelled"]
"""`measured` on the device that is named, `published` in the document that is named, or `modelled`."""

_REQUIRED = ("step", "decode_s", "score_s", "train_sample_s", "weights_s", "start_s", "regroup_s")
_OF_EVERY_STEP = ("batch", "degree", "seconds")
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

    evidence: Evidence | None = None
    """Where it comes from; None as the profile's `step` says."""

    source: str = ""
    """The run, the document, or the assumption."""

    uncertainty: float = Field(default=0.0, ge=0, le=2)
    """As of a `Quantity`, on top of that of `step`: of what sharing makes of a step."""

    @model_serializer(mode="wrap")
    def _without_what_step_says(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """JSON values; of a time for which the profile's `step` speaks, no evidence of its own."""
        values = write(self)
        return values if self.evidence is not None else {name: values[name] for name in _OF_EVERY_STEP}


class Profile(_Part):
    """Seconds of each part of a workload on one kind of device, or on two."""

    name: str = Field(min_length=1, max_length=100)
    """What it is asked for by."""

    summary: str = ""
    """The workload in a sentence."""

    device: str = ""
    """Kind of the devices, such as H100."""

    models: tuple[str, ...] = ()
    """The models that it stands for, as `ModelConfig.key` names them."""

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

    spot: Profile | None = None
    """The same workload on spot devices, where these are of another kind. Of a run it says what generating,
    weights, starting and regrouping take there; all else is this profile's."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        known = [(step.batch, step.degree) for step in self.steps]
        if len(set(known)) < len(known):
            raise ValueError("steps has two times of one batch and degree; keep one")
        if any(step.uncertainty and step.evidence is None for step in self.steps):
            raise ValueError("a time of steps has an uncertainty but no evidence; give its evidence")
        if not self.step.value > 0:
            raise ValueError("step.value is 0, but it multiplies all steps; it is 1 unless it corrects them")
        if self.spot is not None and self.spot.spot is not None:
            raise ValueError("spot has a profile of spot devices of its own; leave that out")
        if not self.degrees:
            raise ValueError("spot has no time of a degree that steps has one of; give it one")
        return self

    @property
    def degrees(self) -> tuple[int, ...]:
        """The degrees that it has times of, on each kind of device."""
        known = {step.degree for step in self.steps}
        return tuple(sorted(known if self.spot is None else known.intersection(self.spot.degrees)))

    def beside(self, spot: Profile) -> Profile:
        """This one for the reserved devices, and another one for the spot devices.

        Args:
            spot: of the same workload.

        Raises:
            ConfigurationError: they have no degree in common.
        """
        if not set(self.degrees) & set(spot.degrees):
            raise ConfigurationError(
                f"profile {self.name} has degrees {', '.join(map(str, self.degrees))}, and {spot.name}, of "
                f"spot devices, {', '.join(map(str, spot.degrees))}; name two that share one"
            )
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return Profile.model_validate(given | {"spot": spot})

    def refuse_without(self, *degrees: int) -> None:
        """Refuse to stand for runs whose devices share samples otherwise than it knows.

        Args:
            degrees: that are needed.

        Raises:
            ConfigurationError: it has no time of one of them.
        """
        for degree in degrees:
            if degree not in self.degrees:
                shared = "that one device does" if degree == 1 else f"that {degree} devices share"
                raise ConfigurationError(
                    f"profile {self.name} has no time of a denoising step {shared}; it has degrees "
                    f"{', '.join(map(str, self.degrees))}: set sequence_parallel to one of them, or name "
                    "another profile"
                )

    def step_s(self, batch: int, degree: int = 1) -> float:
        """Seconds of a denoising step; between the batches of the profile along a straight line.

        Beyond them it is in proportion to the batch, as where devices are busy.

        Raises:
            ConfigurationError: it has no time of that degree.
        """
        self.refuse_without(degree)
        known = sorted((step.batch, step.seconds) for step in self.steps if step.degree == degree)
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

        # Both kinds of device by the same draws: what is not known of the workload is the same on both.
        again = None if chance is None else random.Random()
        if chance is not None and again is not None:
            again.setstate(chance.getstate())
        # Always in this order, so that a seed means the same for every policy.
        step = value(self.step) / self.step.value
        decode_s, score_s, train_s = map(value, (self.decode_s, self.score_s, self.train_sample_s))
        weights_s, start_s, regroup_s = map(value, (self.weights_s, self.start_s, self.regroup_s))
        driver_s, opening_s, loss_s = map(value, (self.driver_s, self.opening_s, self.loss_s))
        evaluation = value(self.evaluation)
        # After all others, so that what is drawn for devices that work alone does not depend on degrees.
        shared_s = {degree: self.step_s(batch, degree) * step for degree in self.degrees}
        for degree in self.degrees:
            if degree > 1:
                shared_s[degree] *= self._sharing(degree).drawn(chance) if chance is not None else 1.0
        # A profile may stand for runs alone whose devices all share.
        step_s = shared_s.get(1, next(iter(shared_s.values())))
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
            shared={degree: max(1, ticks(seconds)) for degree, seconds in shared_s.items()},
            shared_evaluation={
                degree: max(1, ticks(seconds * evaluation)) for degree, seconds in shared_s.items()
            },
            spot=None if self.spot is None else self.spot.times(batch, scorers, trainers, again),
        )

    def _sharing(self, degree: int) -> Quantity:
        """What is known of how sharing changes a step: 1, and its uncertainty."""
        spread = max(step.uncertainty for step in self.steps if step.degree == degree)
        return Quantity(value=1.0, uncertainty=spread)

    @property
    def evidence(self) -> Mapping[Evidence, tuple[str, ...]]:
        """The names of its quantities by where they come from."""
        found: dict[Evidence, tuple[str, ...]] = {}
        for name, quantity in self.quantities.items():
            found[quantity.evidence] = (*found.get(quantity.evidence, ()), name)
        for step in self.steps:
            if step.evidence is not None and (name := f"step of {step.degree} devices") not in found.get(
                step.evidence, ()
            ):
                found[step.evidence] = (*found.get(step.evidence, ()), name)
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
        shared: a denoising step by how many devices share it, 1 among them; empty where none is known but
            `step`.
        shared_evaluation: likewise of an evaluation's batch.
        spot: of spot devices, where they are of another kind.
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
    shared: Mapping[int, int] = field(default_factory=dict)
    shared_evaluation: Mapping[int, int] = field(default_factory=dict)
    spot: WorkloadTimes | None = None

    def of(self, market: Market) -> WorkloadTimes:
        """Those of a market's devices, for what devices do themselves."""
        return self if self.spot is None or market == "reserved" else self.spot

    def step_of(self, kind: RequestKind, degree: int = 1) -> int:
        """Ticks of a denoising step of a batch of a kind that so many devices share."""
        if degree > 1:
            return (self.shared_evaluation if kind is RequestKind.EVALUATE else self.shared)[degree]
        return self.evaluation_step or self.step if kind is RequestKind.EVALUATE else self.step

    @staticmethod
    def step_seconds(step: int) -> float:
        """A step in seconds, as a live run measures it."""
        return step / TICKS_PER_S

    @property
    def degrees(self) -> tuple[int, ...]:
        """By how many devices a step may be shared, as far as its time is known, rising."""
        return tuple(sorted(self.shared)) or (1,)


def read_profile(path: Path) -> Profile:
    """A profile from a JSON file.

    Raises:
        ConfigurationError: no such file, no JSON, or a figure is missing or out of range.
    """
    return read_json_model(path, "profile", Profile, "docs/explanation/what-if.md")
