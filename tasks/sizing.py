"""A run's size before anything exists: memory by term, hours and dollars, all counted as ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_runtime.learning.registry import keeps_reference
from gpu_runtime.models.checks.memory_need import GIB
from gpu_runtime.models.checks.sizing import DeviceMemory as DeviceMemory
from gpu_runtime.models.checks.sizing import device_memory
from gpu_runtime.models.published import published_model
from gpu_runtime.models.registry import family_of
from gpu_runtime.simulator.comparison.what_if import KINDS, Spread, drawn_times, undisturbed
from gpu_runtime.simulator.profile import Profile
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from storage.config.model import ModelConfig
from storage.config.run_config import RunConfig
from storage.config.runtime import RuntimeConfig
from storage.config.what_if import WhatIfQuestion
from storage.errors import ConfigurationError, SpotlightError
from storage.home import Home
from tasks.gpu_profile import Gpu, counted_model
from tasks.prices import with_gpu_prices, with_prices
from tasks.profiles import find_profile
from tasks.what_if_answer import even_shards

_DEVICES = (1, 4, 8)
"""Numbers of devices to compare if the settings leave it to the cluster."""

_FUTURES = WhatIfQuestion.model_fields["windows"].default
"""Draws of the profile."""

_SMALL = 2 * GIB
"""Largest size of a model's files for running on a CPU."""


@dataclass(frozen=True)
class RunSize:
    """A run's size: a device's memory, and times by the number of devices.

    Attributes:
        times: numbers of devices, all on demand and training, with a run's hours and, if there is a price,
            its dollars.
        no_price: why there are no dollars; empty if there are.
    """

    gpu: Gpu
    memory: DeviceMemory
    times: Sequence[tuple[int, Spread, Spread | None]]
    profile: Profile
    no_price: str = ""

    @property
    def fits(self) -> bool:
        """True unless a training device certainly lacks memory."""
        return self.verdict(trains=True) != "does not fit"

    def verdict(self, trains: bool) -> str:
        """Return `fits`, `may not fit` or `does not fit` for a device, with or without training."""
        low, high = self.memory.total(trains)
        there = self.gpu.memory_gib * GIB
        return "fits" if high <= there else "may not fit" if low <= there else "does not fit"


def size_run(home: Home, config: RunConfig, gpu: Gpu) -> RunSize:
    """Return the size of a run on a kind of GPU, from the published sizes of its model.

    Raises:
        ConfigurationError: the family's models are not counted.
    """
    model = counted_model(config.model, config.adaptation)
    profile, no_price, usd_per_hour = find_profile(home, config, gpu.name), "", 0.0
    try:
        priced = with_prices(config, on_demand=True)
        priced = with_gpu_prices(priced, gpu.name, gpu.name, changing=("spot",))
        usd_per_hour = priced.price.reserved_usd_per_hour
    except ConfigurationError as error:
        no_price = str(error)
    reserved, times = config.runtime.reserved_workers, []
    for devices in [reserved] if isinstance(reserved, int) else _DEVICES:
        # The futures of `what-if`, so both give one answer.
        evenly = config.changed(algorithm={"gradient_shards": even_shards(config, devices)})
        drawn = (drawn_times(evenly, profile, devices, future) for future in range(_FUTURES))
        ticks = (undisturbed(config, each, devices, dict.fromkeys(KINDS, 1)) for each in drawn)
        hours = Spread.of([each / TICKS_PER_S / 3600 for each in ticks])
        usd = Spread(*(devices * usd_per_hour * each for each in (hours.median, hours.low, hours.high)))
        times.append((devices, hours, None if no_price else usd))
    memory = device_memory(config, model, keeps_reference(config.algorithm, config.evaluation))
    return RunSize(gpu, memory, times, profile, no_price)


def needs_gpu(model: ModelConfig, runtime: RuntimeConfig) -> bool:
    """Return True if the model has billions of weights and would run on this machine."""
    if model.device == "cpu" or runtime.ray_address:
        return False
    try:
        files = family_of(model).files(model)
    except SpotlightError:  # missing here, which the model check reports
        return published_model(model) is not None
    return sum(file.stat().st_size for file in files) > _SMALL
