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
    ("exploration", "criterion"): "variance",
    ("exploration", "baseline"): "group",
    ("exploration", "when_stale"): "redraft",
    ("exploration", "allocation"): "bandit",
    ("algorithm", "advantage_clip"): 5.0,
}
"""Settings that are gone, and the value that every run has now: a run with another cannot be continued."""

_WITHOUT_EFFECT: tuple[KeyPath, ...] = (
    ("evaluation", "gallery"),
    ("exploration", "gallery_prompts"),
    ("checkpoint", "keep"),
    ("runtime", "scorer_limit_s"),
    ("runtime", "trainer_limit_s"),
    ("sequence_parallel", "at_most"),
)
"""Settings that are gone, and on which no number of a run depends but by rounding."""


_SCORER_OPTIONS: dict[str, dict[str, tuple[str, Any]]] = {
    "ocr": {"ocr_layout": ("layout", "line")},
    "geneval": {
        "detector": ("detector", "facebook/mask2former-swin-small-coco-instance"),
        "clip": ("clip", "openai/clip-vit-large-patch14"),
    },
    "clip-score": {"clip": ("clip", "openai/clip-vit-large-patch14")},
    "pick-score": {
        "pick": ("model", "yuvalkirstain/PickScore_v1"),
        "pick_processor": ("processor", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"),
    },
    "deepseek-ocr": {
        "reader": ("reader", "deepseek-community/DeepSeek-OCR-2"),
        "reader_tokens": ("tokens", 128),
    },
}
"""Settings of the reward that are options of a scorer now: their names there, and their old defaults."""

_REMOTE_DEFAULTS = {
    "url": "", "timeout_s": 60.0, "attempts": 4, "backoff_s": 0.5, "images_a_request": 8, "queue": 4,
}  # fmt: skip

_OBJECTIVE_OPTIONS: dict[str, dict[str, tuple[str, Any]]] = {
    "grpo": {"clip_range": ("clip_range", 1e-3)},
    "nft": {"nft_beta": ("beta", 0.1), "nft_times": ("times", 5)},
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
    reward, algorithm = values.get("reward"), values.get("algorithm")
    if isinstance(reward, dict) and "ocr_layout" in reward:
        _carry_reward(reward)
    if isinstance(algorithm, dict) and "clip_range" in algorithm:
        options = _taken(algorithm, _OBJECTIVE_OPTIONS)
        algorithm["options"] = options.get(str(algorithm.get("objective")), {})
    price = values.get("price")
    if isinstance(price, dict) and "device" in price:
        device, zone, spot = (price.pop(name, "") for name in ("device", "reserved_zone", "spot_zone"))
        price["offer"] = f"{device}@{zone}{',' if spot else ''}{spot}" if device else ""
    return values


def _carry_reward(reward: dict[str, Any]) -> None:
    options = _taken(reward, _SCORER_OPTIONS)
    remote = reward.pop("remote", {})
    options["remote"] = {key: value for key, value in remote.items() if value != _REMOTE_DEFAULTS.get(key)}
    parts = reward.pop("parts", {})
    weighed = {
        name: {"weight": weight, **options[name]} if options.get(name) else weight
        for name, weight in parts.items()
    }
    reward["options"] = {"parts": weighed} if parts else options.get(str(reward.get("scorer")), {})


def _taken(
    section: dict[str, Any], names: Mapping[str, Mapping[str, tuple[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """What is no default, by plug-in and option; the settings leave the section."""
    found = {
        plugin: {
            option: section[setting]
            for setting, (option, default) in options.items()
            if section.get(setting, default) != default
        }
        for plugin, options in names.items()
    }
    for setting in {setting for options in names.values() for setting in options}:
        section.pop(setting, None)
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
