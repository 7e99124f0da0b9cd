"""Profiles by name: those that ship with the project, of a GPU, of a file, or of a recorded run."""

from __future__ import annotations

from pathlib import Path

from gpu_runtime.simulator.profile import Profile, read_profile
from storage.config.loading import PRESETS
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, RunNotFoundError, quoted
from storage.home import Home
from tasks.gpu_profile import (
    DEFAULT_GPU,
    GPUS,
    counted_profile,
    find_gpu,
    gpu_of_device,
    gpu_profile,
    is_gpu_result,
)
from tasks.recorded_profile import recorded_profile

PROFILES = PRESETS / "profiles"
"""The folder of the profiles that ship with the project."""


def find_profile(home: Home, config: RunConfig, name: str | None, spot: str | None = None) -> Profile:
    """Return the profile to use.

    Args:
        name: name of a profile that ships with the project, a kind of GPU, a .json file (a profile, or a
            result of `benchmarks.gpu_day`), or a recorded run; None for the shipped one of this model and
            size, else for that of an H100.
        spot: the same for spot devices of another kind; None for the same kind.

    Raises:
        ConfigurationError: the profile does not exist, or cannot be read.
    """
    found = _named_profile(home, config, name, "--profile")
    if not config.reward.scorer:
        found = found.model_copy(update={"summary": f"{found.summary}; {stand_in_in_words(found)}"})
    return found if spot is None else found.beside(_named_profile(home, config, spot, "--spot-profile"))


def stand_in_in_words(profile: Profile) -> str:
    """Say by what time a reward is counted where none is set."""
    return f"no reward is set: {profile.score_s.value:g} s an image, as of a detector, stand in for yours"


def _named_profile(home: Home, config: RunConfig, name: str | None, option: str) -> Profile:
    if name is not None and name.endswith(".json"):
        return gpu_profile(Path(name), config) if is_gpu_result(Path(name)) else read_profile(Path(name))
    carried = [read_profile(path) for path in sorted(PROFILES.glob("*.json"))]
    own = [profile for profile in carried if config.model.key in profile.models]
    if name is None and own:
        return own[0]
    if (gpu := find_gpu(name or DEFAULT_GPU)) is not None:
        # What was measured on such a GPU and kept takes the place of what is counted.
        measured = (profile for profile in own if gpu_of_device(profile.device) == gpu)
        return next(measured, None) or counted_profile(config, gpu)
    for profile in carried:
        if profile.name == name:
            return profile
    assert name is not None, "the default GPU is counted"
    try:
        return recorded_profile(home, name)
    except RunNotFoundError as error:
        names = ", ".join([*(gpu.name for gpu in GPUS), *(profile.name for profile in carried)])
        raise ConfigurationError(
            f"{option} {quoted(name)} is no GPU or profile ({names}), no .json file and no run"
        ) from error
