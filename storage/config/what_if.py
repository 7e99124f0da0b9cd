"""The question of `what-if`: options of the command, fields of Prefect's form and inputs of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from annotated_types import Ge, Le
from pydantic import Field, ValidationError

from storage.config.errors import explain
from storage.config.section import LARGEST_COUNT, Section
from storage.errors import ConfigurationError, quoted


class WhatIfQuestion(Section):
    """Devices, spot market and times of a run to simulate.

    The command's options, the fields of Prefect's form and the inputs of the page are declared here alone. A
    default is what a form shows; only values that are given change the settings (`given`).
    """

    reserved: int = Field(default=4, ge=1, title="Reserved devices")
    """Reserved devices."""

    spot: int = Field(default=8, ge=0, title="Spot devices")
    """Spot devices."""

    trainers: int = Field(default=0, ge=0, title="Trainers")
    """Reserved devices that train together (runtime.trainer_workers); 0 takes as many as the preset says, as
    does "spotlight train"."""

    iterations: int = Field(default=0, ge=0, le=LARGEST_COUNT, title="Iterations")
    """Iterations of the run; 0 takes as many as the preset says."""

    gpu: str = Field(default="", title="GPU")
    """RTX4090, A100, H100 or H200; a second one, after a comma, is for spot devices. Times are
    measured where a shipped result fits, otherwise counted."""

    profile: str = Field(default="", title="Which GPUs?")
    """Times of the workload: a GPU, a profile's name, a .json file (also of benchmarks.gpu_day), or a
    recorded run. Empty: a shipped profile of the preset's model, or an H100."""

    spot_profile: str = Field(default="", title="Spot GPUs")
    """Times of the workload on spot devices of another kind; give both prices then."""

    degree: str = Field(
        default="",
        title="Devices that share a sample",
        json_schema_extra={"pattern": "^([1-9][0-9]?|auto)?$"},  # for the form; the settings check it, too
    )
    """Devices that share a sample in rollouts and evaluations: a number, or auto, for measured times to
    choose. Above 1 one device trains. Empty: as the settings say."""

    per_instance: int = Field(default=0, ge=0, le=64, title="Devices of an instance")
    """Devices of an instance, which may share samples and are lost together. 0: all are on one machine."""

    trace: str = Field(default="", title="Trace of spot instances")
    """Recorded trace of instance losses, a file on the machine that simulates. Empty: drawn by rate and
    share."""

    loss_rate: float = Field(default=0.67, ge=0, le=3600, title="Losses of a device an hour")
    """Without a trace: losses of a device an hour."""

    joint: float = Field(default=0.77, ge=0, le=1, title="Share of joint losses")
    """Without a trace: share of the losses that take several devices at once."""

    notice: float = Field(default=0.0, ge=0, le=3600, title="Notice before a loss (s)")
    """Seconds of notice before a loss."""

    price: str = Field(default="", title="Prices of devices")
    """Dollars per hour for a reserved and a spot device, as 10.98,2.51. Empty: those of the settings."""

    prices: str = Field(default="", title="Prices over time")
    """A CSV file on the machine that simulates: time, market (on_demand or spot), usd_per_hour, and perhaps
    zone. Empty: those of the settings."""

    zone: str = Field(default="", title="Zone")
    """Zone of that file whose prices count; needed where it has several."""

    serving: str = Field(default="", title="Serving fleet")
    """Load of a serving fleet, which adds the policy lending: its share of busy devices, half of that share's
    daily swing, and the seconds that a request can wait, as 0.5,0.3,2."""

    policies: str = Field(default="", title="Policies")
    """Policies to compare, separated by commas, or all."""

    curve: str = Field(default="", title="Learning curves")
    """Learning curves: the name of carried ones, a .json file, or recorded runs separated by commas."""

    windows: int = Field(default=5, ge=1, le=200, title="Futures")
    """Windows of the trace, each with a draw of the profile within its uncertainty."""

    seed: int = Field(default=0, ge=0, title="Random seed")
    """Random seed of the windows."""

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> Self:
        """Return the question with these values given; a ConfigurationError has a line for each wrong one."""
        try:
            return cls(**values)
        except ValidationError as error:
            raise ConfigurationError("\n".join(explain(error, cls))) from error

    @classmethod
    def bounds(cls, name: str) -> tuple[float | None, float | None]:
        """Return a field's minimum and maximum; None if it has no such bound."""
        found = {type(bound): bound for bound in cls.model_fields[name].metadata}
        return getattr(found.get(Ge), "ge", None), getattr(found.get(Le), "le", None)

    def given(self, name: str) -> Any:
        """Return a field's value; None if it was not given, or its value means that."""
        value = getattr(self, name)
        neutral = value == "" or (value == 0 and name in ("trainers", "iterations"))
        return value if name in self.model_fields_set and not neutral else None

    def as_settings(self) -> list[str]:
        """Return fleet, length and prices as run settings, to be checked as such."""
        given = {
            "runtime.reserved_workers": self.given("reserved"), "runtime.spot_workers": self.given("spot"),
            "runtime.trainer_workers": self.given("trainers"), "iterations": self.given("iterations"),
            "sequence_parallel.rollout": self.given("degree"),
            "sequence_parallel.evaluate": self.given("degree"),
        }  # fmt: skip
        if self.given("price") is not None:
            parts = [part.strip() for part in self.price.split(",")]
            if len(parts) != 2 or not all(parts):
                raise ConfigurationError(
                    f"--price is {quoted(self.price)}; give the dollars per hour of a reserved and of a spot "
                    "device, as in 10.98,2.51"
                )
            given |= {"price.book": "", "price.offer": ""}
            given |= {"price.reserved_usd_per_hour": parts[0], "price.spot_usd_per_hour": parts[1]}
        return [f"{name}={value}" for name, value in given.items() if value is not None]
