"""A configuration that an earlier version stored, read with the settings of this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from storage.config.errors import KeyPath, dotted
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError

_FIXED: dict[KeyPath, Any] = {
    ("sampling", "window_start"): 0,
    ("optimizer", "beta1"): 0.9,
    ("optimizer", "weight_decay"): 1e-4,
    ("runtime", "threads"): 1,
    ("exploration", "noise_aware"): False,
    ("exploration", "history_half_life"): 10.0,
}
"""Settings that are gone, and the value that every run has now: a run with another cannot be continued."""

_WITHOUT_EFFECT: tuple[KeyPath, ...] = (
    ("evaluation", "gallery"),
    ("checkpoint", "keep"),
    ("runtime", "scorer_limit_s"),
    ("runtime", "trainer_limit_s"),
    ("sequence_parallel", "at_most"),
)
"""Settings that are gone, and on which no number of a run depends but by rounding."""


_SCORER_OPTIONS: dict[str, dict[str, str]] = {
    "ocr": {"ocr_layout": "layout"},
    "geneval": {"detector": "detector", "clip": "clip"},
    "clip-score": {"clip": "clip"},
    "pick-score": {"pick": "model", "pick_processor": "processor"},
    "deepseek-ocr": {"reader": "reader", "reader_tokens": "tokens"},
}
"""Settings of the reward that are options of a scorer now, by its name; those of the others had no effect."""

_OBJECTIVE_OPTIONS: dict[str, dict[str, str]] = {
    "grpo": {"clip_range": "clip_range"},
    "nft": {"nft_beta": "beta", "nft_times": "times"},
}


def carried_over(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration in the settings of this version, as far as it can be said in them.

    Args:
        stored: JSON values, as `RunConfig.model_dump(mode="json")` made them at the time.

    Returns:
        JSON values. What cannot be said stays under its old key, which `RunConfig` refuses.
    """
    values = {name: dict(value) if isinstance(value, dict) else value for name, value in stored.items()}
    for key in _WITHOUT_EFFECT:
        _pop(values, key)
    fixed = _FIXED | {("adaptation", "alpha"): 2.0 * _number(values, ("adaptation", "rank"))}
    for key, value in fixed.items():
        if _at(values, key) == value:
            _pop(values, key)
    runtime = values.get("runtime")
    if isinstance(runtime, dict):
        address = runtime.pop("ray_address", "")
        if address:
            runtime["cluster"] = address
        if "commit_s" in runtime:  # commit_steps 0 meant finished samples only, and is 200 now
            was_default = (runtime.get("commit_steps"), runtime.pop("commit_s")) == (4, 1.0)
            runtime["commit_steps"] = 0 if was_default else runtime.get("commit_steps") or 200
        url = runtime.pop("notice_url", "")
        if url:
            runtime["notices"] = f"{runtime.get('notices')}@{url}"
    _carry_reward(values.get("reward"))
    algorithm = values.get("algorithm")
    if isinstance(algorithm, dict) and "clip_range" in algorithm:
        algorithm["options"] = _renamed(algorithm, _OBJECTIVE_OPTIONS).get(
            str(algorithm.get("objective")), {}
        )
    price = values.get("price")
    if isinstance(price, dict) and "device" in price:
        device, zone, spot = (price.pop(name, "") for name in ("device", "reserved_zone", "spot_zone"))
        price["offer"] = f"{device}@{zone}{',' if spot else ''}{spot}" if device else ""
    return values


def _carry_reward(reward: Any) -> None:
    if not isinstance(reward, dict) or "ocr_layout" not in reward:
        return
    options = _renamed(reward, _SCORER_OPTIONS) | {"remote": reward.pop("remote", {})}
    parts = reward.pop("parts", {})
    if parts:
        weighed = {name: {"weight": weight, **options.get(name, {})} for name, weight in parts.items()}
        reward["options"] = {"parts": weighed}
    else:
        reward["options"] = options.get(str(reward.get("scorer")), {})


def _renamed(section: dict[str, Any], names: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, Any]]:
    """Options by plug-in, taken out of a section."""
    found = {
        plugin: {new: section[old] for old, new in of_plugin.items() if old in section}
        for plugin, of_plugin in names.items()
    }
    for old in {old for of_plugin in names.values() for old in of_plugin}:
        section.pop(old, None)
    return found


def stored_config(stored: str | Mapping[str, Any], owner: str, advice: str) -> RunConfig:
    """Read a stored configuration.

    Args:
        stored: JSON, or its values.
        owner: whose it is, for the message: `run glyphs-1`.
        advice: what to do where it cannot be read.

    Raises:
        ConfigurationError: it has settings, or values, that this version has not.
    """
    values: Any = stored
    try:
        values = from_json(stored) if isinstance(stored, str) else stored
        values = carried_over(values) if isinstance(values, Mapping) else values
        return RunConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = tuple(map(str, first["loc"]))
        reason = f"{dotted(key)}: {first['msg']}"
        if key in _FIXED:
            reason = f"{dotted(key)} was {_at(values, key)!r}, and is {_FIXED[key]!r} in every run now"
        raise ConfigurationError(
            f"{owner} was made with other settings than this version has ({reason}); {advice}"
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"the settings of {owner} are no JSON ({error}); {advice}") from error


def _at(values: Any, key: KeyPath) -> Any:
    """The value of a setting; None where there is none."""
    for part in key:
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _number(values: Any, key: KeyPath) -> float:
    value = _at(values, key)
    return value if isinstance(value, int | float) else 0.0


def _pop(values: Any, key: KeyPath) -> None:
    section = _at(values, key[:-1])
    if isinstance(section, dict):
        section.pop(key[-1], None)
