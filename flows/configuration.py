"""A run's configuration as given on the command line or in a form, and the checks before it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from flows.progress import reporter
from storage.config.loading import Given, load_config, load_with_sources
from storage.config.run_config import MIRROR_VARIABLE, RunConfig
from storage.config.tracking import READERS_VARIABLE, TRACKING_VARIABLE
from storage.errors import ConfigurationError
from storage.prompts.files import BUILTIN_PREFIX

TRAINERS = "runtime.trainer_workers"
_PLACES = (READERS_VARIABLE, TRACKING_VARIABLE, MIRROR_VARIABLE)


def given_configuration(preset: str | None, settings: Given, needs_task: bool = True) -> RunConfig:
    """Return the configuration of `given_with_sources`, without the sources.

    Args: those of `given_with_sources`.
    """
    return given_with_sources(preset, settings, None, needs_task)[0]


def given_with_sources(
    preset: str | None, settings: Given, base: RunConfig | None = None, needs_task: bool = True
) -> tuple[RunConfig, Mapping[str, str]]:
    """Return a configuration, and where each value came from, as `load_with_sources` does.

    Relative paths are taken from this process's folder.

    Args:
        preset: a preset's name, or a TOML file.
        settings: the settings that the user gives.
        base: an earlier run's configuration, replacing the defaults.
        needs_task: False for a run that is only sized, which may have neither reward nor prompts.

    Raises:
        ConfigurationError: any problem, one line each.
    """
    from tasks.checks.quick_checks import with_read_options

    config, sources = load_with_sources(preset, settings, os.environ, base)
    return with_absolute_paths(with_read_options(config, sources, needs_task)), sources


def configuration_to_resume(config: RunConfig, changes: Sequence[str] = ()) -> RunConfig:
    """Return an earlier run's configuration with the changes a resumed run may make.

    These are where it runs, how long it may continue and, with gradient shards, how many devices train.
    The environment may change where figures and checkpoints are copied to: a server may be gone for good.
    """
    for setting, _, trainers in (change.partition("=") for change in changes):
        if setting == TRAINERS and config.algorithm.gradient_shards == 1:
            raise ConfigurationError(
                f"--trainers is {trainers}, but with algorithm.gradient_shards=1 the bits of a run depend on "
                "how many devices train; leave it out"
            )
    environ = {name: os.environ[name] for name in _PLACES if name in os.environ}
    return load_config(None, changes, environ, config) if changes or environ else config


def cluster_setting(cluster: str | None, ray_address: str | None) -> list[str]:
    """Return `--cluster` and `--ray-address` as the single setting that they form; none if both are None."""
    if ray_address is None:
        return [] if cluster is None else [f"runtime.cluster={cluster}"]
    if cluster == "local" and ray_address:
        raise ConfigurationError(
            f"--cluster local starts processes of this machine, but --ray-address is {ray_address!r}; leave "
            "one of them out"
        )
    return [f"runtime.cluster={ray_address or cluster or 'ray'}"]


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Return the configuration with absolute paths: a run may be resumed from another folder."""
    prompts, book = config.prompts, config.price.book
    return config.model_copy(update={"model": config.model.with_absolute_paths()}).changed(
        prompts={"train": _absolute(prompts.train), "evaluate": _absolute(prompts.evaluate)},
        price={"book": book and _absolute(book)},
    )


def look_at_inputs(config: RunConfig) -> None:
    """Do the first part of `run_preflight`, which imports no slow library."""
    from tasks.checks.quick_checks import check_inputs

    check_inputs(config)


def look_at_model(
    config: RunConfig, here: bool = True, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Do the second part of `run_preflight`, which takes seconds.

    Args:
        meanwhile: called while another process does the checks, or before them.
    """
    from tasks.checks.early_check import Checks, begin_check

    checked = begin_check(config) if here else lambda: Checks().check(config)
    meanwhile()
    for warning in checked():
        reporter().note(f"warning: {warning}")


def run_preflight(config: RunConfig, here: bool = True) -> None:
    """Refuse input that can be checked before anything starts; report warnings.

    Args:
        here: True if this process will be the run's driver.

    Raises:
        SpotlightError: for the first unusable input.
    """
    look_at_inputs(config)
    look_at_model(config, here)


def _absolute(path: str) -> str:
    return path if not path or path.startswith(BUILTIN_PREFIX) else os.path.abspath(os.path.expanduser(path))
