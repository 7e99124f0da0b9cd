"""Profiles of a workload for the simulator: the seconds of each part, with their evidence. Pure.

A profile says which figures were measured and which are modelled. Each figure has a relative uncertainty; a
simulated future draws one value of each, so the uncertainty shows in the interval of every answer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from copy import copy
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
from gpu_runtime.simulator.virtual_time import ticks
from storage.errors import ConfigurationError
from storage.record.records import Market
from storage.text import read_json_model

Evidence = Literal["measured", "scaled", "published", "counted", "modelled"]
"""`measured` on the named device, `scaled` from that by counted operations, `published` in the named
document, `counted` from operations and bytes with a stated range, or `modelled`."""

RANGE_DEVIATIONS = 1.645
"""Standard deviations from a figure to either end of its range: nine of ten draws lie between the ends."""

_REQUIRED = ("step", "decode_s", "score_s", "train_sample_s", "weights_s", "start_s", "regroup_s")
_OF_EVERY_STEP = ("batch", "degree", "seconds")
_OPTIONAL = ("evaluation", "driver_s", "opening_s", "loss_s")


class LowEnd(random.Random):
    """Draws the low end of every range."""

    deviations = -RANGE_DEVIATIONS

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        """Return the end of a normal distribution's range."""
        return mu + self.deviations * sigma


class HighEnd(LowEnd):
    """Draws the high end of every range."""

    deviations = RANGE_DEVIATIONS


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Quantity(_Part):
    """A figure with its evidence and uncertainty."""

    value: float = Field(ge=0, le=1e7)
    """The value, in the unit that the quantity's name gives."""

    evidence: Evidence = "modelled"
    """Kind of evidence; `source` has the details."""

    source: str = ""
    """The run, the document, or the assumption."""

    uncertainty: float = Field(default=0.0, ge=0, le=3)
    """Standard deviation of its logarithm: with 0.1, two of three futures are within about a tenth."""

    @classmethod
    def counted(cls, low: float, high: float, source: str) -> Self:
        """Return a counted figure: the geometric mean of its range's ends.

        Args:
            low, high: ends of the range, both 0 or both above.
            source: what was counted.
        """
        uncertainty = math.log(high / low) / (2 * RANGE_DEVIATIONS) if low else 0.0
        return cls(value=math.sqrt(low * high), evidence="counted", source=source, uncertainty=uncertainty)

    @property
    def range(self) -> tuple[float, float]:
        """The ends of its range."""
        factor = math.exp(RANGE_DEVIATIONS * self.uncertainty)
        return self.value / factor, self.value * factor

    def drawn(self, chance: random.Random) -> float:
        """Draw a value; always uses one draw, so that later draws do not depend on it."""
        return self.value * math.exp(self.uncertainty * chance.gauss(0.0, 1.0))


class StepTime(_Part):
    """The time of a denoising step."""

    batch: int = Field(ge=1, le=4096)
    """Number of samples denoised together."""

    degree: int = Field(default=1, ge=1, le=64)
    """Number of devices that share each sample."""

    seconds: float = Field(gt=0, le=1e6)
    """Seconds of one step of the whole batch."""

    evidence: Evidence | None = None
    """Kind of evidence; None for that of the profile's `step`."""

    source: str = ""
    """The run, the document, or the assumption."""

    uncertainty: float = Field(default=0.0, ge=0, le=2)
    """Uncertainty of the effect of sharing, on top of that of `step`; see `Quantity`."""

    @model_serializer(mode="wrap")
    def _without_inherited_evidence(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return JSON values, without evidence if that of the profile's `step` applies."""
        values = write(self)
        return values if self.evidence is not None else {name: values[name] for name in _OF_EVERY_STEP}


class Profile(_Part):
    """The seconds of each part of a workload on one or two kinds of device."""

    name: str = Field(min_length=1, max_length=100)
    """Name that users choose it by."""

    summary: str = ""
    """One sentence about the workload."""

    device: str = ""
    """Kind of device, such as H100."""

    models: tuple[str, ...] = ()
    """Models that it represents, as `ModelConfig.key` names them."""

    steps: tuple[StepTime, ...] = Field(min_length=1)
    """Times of a denoising step by batch and degree."""

    step: Quantity
    """Factor on all of `steps`, with their evidence and uncertainty; 1 unless it corrects them."""

    decode_s: Quantity
    """Time to decode one image."""

    score_s: Quantity
    """Time for one scorer to judge one image."""

    train_sample_s: Quantity
    """One sample's share of an iteration's training, on one device."""

    weights_s: Quantity
    """Time for a device to take new weights."""

    start_s: Quantity
    """Time from an instance's arrival until its worker has loaded the model."""

    regroup_s: Quantity
    """Time for devices to form a group that shares samples."""

    evaluation: Quantity = Quantity(value=1.0, source="taken as a rollout's")
    """Ratio of an evaluation's denoising step time to a rollout's."""

    driver_s: Quantity = Quantity(value=0.0, source="left out")
    """Time of an iteration outside rollout, reward and training steps: records, publishing the weights."""

    opening_s: Quantity = Quantity(value=0.0, source="left out")
    """Time from loaded devices to the first phase of a run: its scorers, its tracking."""

    loss_s: Quantity = Quantity(value=0.0, source="left out")
    """Time from an instance's loss until a call to its worker fails."""

    spot: Profile | None = None
    """The same workload on spot devices of another kind. It gives their times to generate, take weights,
    start and regroup; all other times come from this profile."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        known = [(step.batch, step.degree) for step in self.steps]
        if len(set(known)) < len(known):
            raise ValueError("steps has two times for one batch and degree; keep one")
        if any(step.uncertainty and step.evidence is None for step in self.steps):
            raise ValueError("a time in steps has an uncertainty but no evidence; give its evidence")
        if not self.step.value > 0:
            raise ValueError("step.value is 0, but it multiplies all steps; use 1 unless it corrects them")
        if self.spot is not None and self.spot.spot is not None:
            raise ValueError("the profile in spot has another in its own spot; leave that out")
        if not self.degrees:
            raise ValueError("spot and steps share no degree; give spot a time of a degree in steps")
        return self

    @property
    def degrees(self) -> tuple[int, ...]:
        """The degrees with known times on every kind of device, rising."""
        known = {step.degree for step in self.steps}
        return tuple(sorted(known if self.spot is None else known.intersection(self.spot.degrees)))

    def beside(self, spot: Profile) -> Profile:
        """Return a profile with this one for the reserved devices and another for the spot devices.

        Raises:
            ConfigurationError: they have no degree in common.
        """
        if not set(self.degrees) & set(spot.degrees):
            raise ConfigurationError(
                f"profile {self.name} has degrees {', '.join(map(str, self.degrees))}, but {spot.name}, for "
                f"spot devices, {', '.join(map(str, spot.degrees))}; name two that share one"
            )
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return Profile.model_validate(given | {"spot": spot})

    def refuse_without(self, *degrees: int) -> None:
        """Refuse runs with degrees for which the profile has no times.

        Raises:
            ConfigurationError: the profile has no time of one of them.
        """
        for degree in degrees:
            if degree not in self.degrees:
                raise ConfigurationError(
                    f"profile {self.name} has no denoising step time for degree {degree}; it has degrees "
                    f"{', '.join(map(str, self.degrees))}: set sequence_parallel to one of them, or name "
                    "another profile"
                )

    def step_s(self, batch: int, degree: int = 1) -> float:
        """Return the seconds of a denoising step, interpolated linearly between the profile's batches.

        Beyond them it is proportional to the batch, as on busy devices.

        Raises:
            ConfigurationError: the profile has no time of that degree.
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
        self, batch: int, scorers: int, trainers: float, chance: random.Random | None = None
    ) -> WorkloadTimes:
        """Return the times of a run.

        Args:
            scorers: number of processes that judge images.
            trainers: speed of training, as a multiple of one device's.
            chance: draws the values; None for the values as given.
        """

        def value(quantity: Quantity) -> float:
            return quantity.value if chance is None else quantity.drawn(chance)

        # Both kinds of device use the same draws, since the workload's uncertainty is the same on both.
        again = copy(chance)
        # Always in this order, so that a seed means the same for every policy.
        step = value(self.step) / self.step.value
        decode_s, score_s, train_s = map(value, (self.decode_s, self.score_s, self.train_sample_s))
        weights_s, start_s, regroup_s = map(value, (self.weights_s, self.start_s, self.regroup_s))
        driver_s, opening_s, loss_s = map(value, (self.driver_s, self.opening_s, self.loss_s))
        evaluation = value(self.evaluation)
        # After all others, so that the draws for devices that work alone do not depend on degrees.
        shared_s = {degree: self.step_s(batch, degree) * step for degree in self.degrees}
        for degree in self.degrees:
            if degree > 1 and chance is not None:
                spread = max(step.uncertainty for step in self.steps if step.degree == degree)
                shared_s[degree] *= Quantity(value=1.0, uncertainty=spread).drawn(chance)
        # A profile may have times only for runs whose devices all share.
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
            shared={degree: max(1, ticks(seconds)) for degree, seconds in shared_s.items()},
            shared_evaluation={
                degree: max(1, ticks(seconds * evaluation)) for degree, seconds in shared_s.items()
            },
            spot=None if self.spot is None else self.spot.times(batch, scorers, trainers, again),
        )

    @property
    def evidence(self) -> Mapping[Evidence, tuple[str, ...]]:
        """The names of its quantities by their evidence."""
        named: list[tuple[Evidence, str]] = [(each.evidence, name) for name, each in self.quantities.items()]
        for step in self.steps:
            if step.evidence is not None:
                named.append((step.evidence, f"step of {step.degree} devices"))
        found: dict[Evidence, tuple[str, ...]] = {}
        for evidence, name in dict.fromkeys(named):  # a degree has a step of each batch
            found[evidence] = (*found.get(evidence, ()), name)
        return found

    @property
    def is_counted(self) -> bool:
        """True if some of its figures were counted, on either kind of device."""
        return "counted" in self.evidence or (self.spot is not None and self.spot.is_counted)

    def has_measured_steps(self, shared: bool) -> bool:
        """Return True if steps were measured, on both kinds of devices; if `shared`, those of groups too.

        They may be scaled from measured ones.
        """
        of_groups = all(step.evidence in (None, "measured") for step in self.steps)
        spot = self.spot is None or self.spot.has_measured_steps(shared)
        return self.step.evidence in ("measured", "scaled") and (of_groups or not shared) and spot

    def evidence_of_runs(self, shared: bool) -> Literal["modelled", "counted"]:
        """Return `counted` for runs that are simulated from counted times, unless steps were measured."""
        return "counted" if self.is_counted and not self.has_measured_steps(shared) else "modelled"

    def runs_in_words(self, shared: bool) -> str:
        """Return the basis of simulated runs' figures, to end a sentence about them."""
        if self.has_measured_steps(shared):
            training = self.train_sample_s.evidence
            steps = (
                "measured steps" if self.step.evidence == "measured" else "steps scaled from measured ones"
            )
            more = "" if training == self.step.evidence else f" and {training} training"
            return f"simulated from {steps}{more}"
        return f"{self.evidence_of_runs(shared)} and not measured"

    def counted_ranges(self, batch: int) -> dict[str, dict[str, float]]:
        """Return counted figures by name, with their ranges' ends in seconds; `step_s` is for the batch."""
        found = {}
        for name in self.evidence.get("counted", ()):
            if (quantity := self.quantities.get(name)) is None:
                continue  # of a step that devices share
            factor = self.step_s(batch) / quantity.value if name == "step" else 1.0
            low, high = quantity.range
            values = {"low": low, "value": quantity.value, "high": high}
            found["step_s" if name == "step" else name] = {end: factor * at for end, at in values.items()}
        return found

    @property
    def quantities(self) -> dict[str, Quantity]:
        """Its quantities by name; optional ones only if they were given."""
        given = {name: getattr(self, name) for name in (*_REQUIRED, *_OPTIONAL)}
        return {name: found for name, found in given.items() if name in self.model_fields_set}


@dataclass(frozen=True)
class WorkloadTimes:
    """The times of one simulated run, in ticks.

    Attributes:
        step: time of a denoising step of a batch.
        score: time per image, with all scorers at work.
        train_sample: one sample's share of training, with all trainers at work.
        weights: time for a device to take new weights.
        start: time from an instance's arrival to a loaded worker.
        regroup: time to form a group.
        driver: time of an iteration outside its phases.
        opening: time from loaded devices to the first phase.
        loss: time from a loss until the run can know of it.
        evaluation_step: time of a denoising step of an evaluation's batch; 0 for `step`.
        shared: time of a denoising step by degree, including 1 if known; empty if only `step` is known.
        shared_evaluation: `shared` for an evaluation's batch.
        spot: times of spot devices, if they are of another kind.
    """

    step: int
    decode: int
    score: int
    train_sample: int
    weights: int
    start: int
    regroup: int
    driver: int = 0
    opening: int = 0
    loss: int = 0
    evaluation_step: int = 0
    shared: Mapping[int, int] = field(default_factory=dict)
    shared_evaluation: Mapping[int, int] = field(default_factory=dict)
    spot: WorkloadTimes | None = None

    def of(self, market: Market) -> WorkloadTimes:
        """Return the times of a market's devices, for work that devices do themselves."""
        return self if self.spot is None or market == "reserved" else self.spot

    def step_of(self, kind: RequestKind, degree: int = 1) -> int:
        """Return the ticks of a denoising step of a kind's batch, shared by `degree` devices."""
        if degree > 1:
            return (self.shared_evaluation if kind is RequestKind.EVALUATE else self.shared)[degree]
        return self.evaluation_step or self.step if kind is RequestKind.EVALUATE else self.step

    @property
    def degrees(self) -> tuple[int, ...]:
        """The degrees whose step times are known, rising."""
        return tuple(sorted(self.shared)) or (1,)


def read_profile(path: Path) -> Profile:
    """Read a profile from a JSON file.

    Raises:
        ConfigurationError: the file is missing or not JSON, or a figure is missing or out of range.
    """
    return read_json_model(path, "profile", Profile, "docs/explanation/what-if.md")
