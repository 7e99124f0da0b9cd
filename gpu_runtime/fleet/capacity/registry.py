"""The providers of spot instances by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_runtime.cluster.protocol import Cluster
from gpu_runtime.fleet.capacity.autoscaler import AutoscalerCapacity
from gpu_runtime.fleet.capacity.command import CommandCapacity, CommandOptions
from gpu_runtime.fleet.capacity.lending import LendingCapacity, LendingOptions
from gpu_runtime.fleet.capacity.protocol import CapacityProvider
from gpu_runtime.fleet.capacity.trace import TraceCapacity, TraceOptions
from storage.config.plugins import NoOptions, Registry
from storage.config.run_config import RunConfig
from storage.config.runtime import AUTO, FIXED_CAPACITY, RuntimeConfig
from storage.config.section import Section
from storage.errors import ConfigurationError, TraceError
from storage.record.run_folder import INSTANCES_FILE, RunFolder


@dataclass(frozen=True)
class CapacityPlugin:
    """A provider that `runtime.capacity` can name, and how to build it from settings.

    Attributes:
        build: builds it from the run's `[runtime]`, cluster and options; None if the settings alone fix the
            number of devices.
        check: refuses unusable settings with `ConfigurationError` before anything starts.
    """

    build: Callable[[RuntimeConfig, Cluster, Any], CapacityProvider] | None
    options: type[Section] = NoOptions
    check: Callable[[RuntimeConfig, Any], None] = lambda runtime, options: None


def _check_trace(runtime: RuntimeConfig, options: TraceOptions) -> None:
    try:
        options.read()
    except TraceError as error:
        raise ConfigurationError(f"runtime.options.file: {error}") from error


def _check_autoscaler(runtime: RuntimeConfig, options: NoOptions) -> None:
    if not runtime.ray_address:
        raise ConfigurationError(
            f"runtime.capacity = {runtime.capacity!r} needs the autoscaler of a Ray cluster, but "
            f"runtime.cluster = {runtime.cluster!r} starts processes on this machine; give the "
            "address of a cluster with an autoscaler, or omit runtime.capacity"
        )


def _refuse_misfits(config: RunConfig, plugin: CapacityPlugin, options: Section) -> None:
    runtime, named = config.runtime, f"runtime.capacity = {config.runtime.capacity!r}"
    if plugin.build is not None and runtime.spot_workers in (0, AUTO):
        raise ConfigurationError(
            f"{named} decides the number of spot devices, up to runtime.spot_workers, which is "
            f"{runtime.spot_workers}; set it to the most you would pay for"
        )
    if plugin.build is not None and config.sequence_parallel.largest > 1:
        raise ConfigurationError(
            f"{named} adds and returns single devices, but sequence_parallel shares "
            f"images between up to {config.sequence_parallel.largest} devices; this combination is "
            "untested, so omit one of them"
        )


CAPACITY = Registry(
    "runtime.capacity",
    CapacityPlugin,
    "spotlight.capacity",
    {
        FIXED_CAPACITY: CapacityPlugin(None),
        "trace": CapacityPlugin(
            lambda runtime, cluster, options: TraceCapacity(options.read(), options.notice_s),
            TraceOptions,
            _check_trace,
        ),
        "command": CapacityPlugin(
            lambda runtime, cluster, options: CommandCapacity(options, runtime.ray_address),
            CommandOptions,
            lambda runtime, options: options.check(),
        ),
        "lending": CapacityPlugin(
            lambda runtime, cluster, options: LendingCapacity(options),
            LendingOptions,
            lambda runtime, options: options.check(),
        ),
        "ray": CapacityPlugin(
            lambda runtime, cluster, options: AutoscalerCapacity(cluster), check=_check_autoscaler
        ),
    },
    refuse=_refuse_misfits,
)


def check_capacity(runtime: RuntimeConfig) -> None:
    """Check that this machine has the files and programs that the provider needs.

    Raises:
        ConfigurationError: something is missing.
    """
    plugin, options = CAPACITY.chosen(runtime)
    plugin.check(runtime, options)


def build_capacity(
    runtime: RuntimeConfig, cluster: Cluster, folder: RunFolder | None = None
) -> CapacityProvider | None:
    """Return the provider that the settings name; None if the settings alone fix the number of devices.

    Args:
        folder: folder of the run that this process drives, for the names of rented instances; None to keep
            none.

    Raises:
        ConfigurationError: no provider has that name, or an option is wrong.
        StorageError: the file is damaged.
    """
    plugin, options = CAPACITY.chosen(runtime)
    provider = None if plugin.build is None else plugin.build(runtime, cluster, options)
    if provider is not None and folder is not None:
        provider.keep_in(folder.path / INSTANCES_FILE, folder.is_taken_over)
    return provider
