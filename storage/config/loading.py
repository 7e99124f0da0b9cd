"""The configuration of a run from all its sources, with errors a person can act on.

Later sources win: the defaults, a preset (TOML), the environment, `--set section.key=value`.

Environment: `SPOTLIGHT_SEED=3` sets a top-level setting, `SPOTLIGHT_SAMPLING__NOISE_LEVEL=0.5` one
of a section (two underscores for the dot). A name with two underscores that is no setting is
refused; other names of the project (`OTHER_VARIABLES`) are left alone.
"""

from __future__ import annotations

import difflib
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from storage.config.errors import KeyPath, explain
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, quoted, shortened
from storage.home import HOME_VARIABLE, UP_TOKEN_VARIABLE
from storage.text import one_line, read_text_file

PRESETS = Path(__file__).resolve().parents[2] / "presets"
"""Folder of the presets that have a name."""

BASES = PRESETS / "bases"
"""Folder of what several presets share: `extends = ["NAME", ...]` at a preset's top puts these before it."""

PREFIX = "SPOTLIGHT_"

OTHER_VARIABLES = frozenset({HOME_VARIABLE, UP_TOKEN_VARIABLE})
"""Names of the project in the environment that are no settings of a run."""


@dataclass(frozen=True)
class Preset:
    """A preset that has a name.

    Attributes:
        summary: what it is for: its first line, which is a comment.
    """

    name: str
    path: Path
    summary: str


@dataclass(frozen=True)
class _Setting:
    """One value on its way into the configuration, and where it came from."""

    key: KeyPath
    value: Any
    source: str


def list_presets(folder: Path = PRESETS) -> list[Preset]:
    """The presets of a folder, by name."""
    presets: list[Preset] = []
    for path in sorted(folder.glob("*.toml"), key=lambda path: path.stem):
        lines = path.read_text(encoding="utf-8").splitlines() or [""]
        presets.append(Preset(path.stem, path, lines[0].removeprefix("#").strip()))
    return presets


def load_config(
    preset: str | None, sets: Sequence[str], environ: Mapping[str, str], base: RunConfig | None = None
) -> RunConfig:
    """Put a configuration together; later sources win.

    Args:
        preset: name of a preset, or path of a TOML file; None for the defaults.
        sets: `section.key=value` each; the value is read as TOML, else taken as it stands.
        environ: the environment to read `SPOTLIGHT_*` from.
        base: an earlier run's configuration to start from, in place of the defaults.

    Raises:
        ConfigurationError: any problem, one line each: the setting, its value, what it may be.
    """
    problems: list[str] = []
    settings: list[_Setting] = []
    if base is not None:
        settings += _flatten((), differences(base), "the run's configuration")
    if preset is not None:
        settings += _preset_settings(preset)
    for name, text in sorted(environ.items()):
        key = _variable_key(name)
        if key is not None:
            settings += _parsed(key, text, name)
    for assignment in sets:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            problems.append(
                f"--set {shortened(assignment)}: write section.key=value, as in sampling.noise_level=0.5"
            )
            continue
        key = tuple(part.strip() for part in name.split("."))
        settings += _parsed(key, text.strip(), "--set")
    return _validated(settings, problems)


def differences(config: RunConfig) -> dict[str, Any]:
    """What a configuration holds beyond the defaults, nested as in a preset (JSON values)."""
    defaults = RunConfig().model_dump(mode="json")
    changed: dict[str, Any] = {}
    for name, value in config.model_dump(mode="json").items():
        if isinstance(value, dict):
            section = {k: v for k, v in value.items() if v != defaults[name][k]}
            if section:
                changed[name] = section
        elif value != defaults[name]:
            changed[name] = value
    return changed


def _preset_settings(preset: str) -> list[_Setting]:
    """What a preset's bases say, in their order, and then the preset itself."""
    values = _read_toml(_preset_path(preset))
    named = values.pop("extends", [])
    bases = [named] if isinstance(named, str) else named
    known = sorted(path.stem for path in BASES.glob("*.toml"))
    settings: list[_Setting] = []
    for base in bases if isinstance(bases, list) else [bases]:
        if base not in known:
            raise ConfigurationError(
                f"preset {preset}: extends names {base!r}, and there is no such base; there are "
                f"{', '.join(known)}"
            )
        settings += _flatten((), _read_toml(BASES / f"{base}.toml"), f"base {base} of preset {preset}")
    return settings + _flatten((), values, f"preset {preset}")


def _preset_path(preset: str) -> Path:
    if preset.endswith(".toml") or "/" in preset:
        return Path(preset)
    names = [known.name for known in list_presets()]
    if preset in names:
        return PRESETS / f"{preset}.toml"
    near = difflib.get_close_matches(preset, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigurationError(
        f"no preset {quoted(preset)}; {hint}there are {', '.join(names) or 'none'}; or give a path to a "
        ".toml file"
    )


def _read_toml(path: Path) -> dict[str, Any]:
    text = read_text_file(path, f"preset {path}", ConfigurationError)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # bad TOML, brackets without end
        raise ConfigurationError(f"preset {path} is no TOML: {error}") from error


def _variable_key(name: str) -> KeyPath | None:
    """The setting that an environment variable names; None where it is none of ours."""
    if not name.startswith(PREFIX) or name in OTHER_VARIABLES:
        return None
    key = tuple(part.lower() for part in name.removeprefix(PREFIX).split("__"))
    if len(key) == 1 and not difflib.get_close_matches(key[0], RunConfig.model_fields, n=1, cutoff=0.8):
        return None  # not even nearly a setting: some other tool's variable
    return key


def _parsed(key: KeyPath, text: str, source: str) -> list[_Setting]:
    """Settings of a value given as text."""
    value = text if _takes_text(key) and text[:1] not in ("'", '"') else _toml_value(text)
    return _flatten(key, value, source)


def _toml_value(text: str) -> Any:
    """The text as a TOML value, or itself where it is none."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def _takes_text(key: KeyPath) -> bool:
    """Whether a setting is a string, so that `--set name=42` means the text 42."""
    model: Any = RunConfig
    for depth, part in enumerate(key):
        field = model.model_fields.get(part)
        if field is None:
            return False
        model = field.annotation
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            literals = typing.get_args(model) if typing.get_origin(model) is typing.Literal else ()
            is_text = model is str or (bool(literals) and all(isinstance(v, str) for v in literals))
            return is_text and depth == len(key) - 1
    return False


def _flatten(prefix: KeyPath, value: Any, source: str) -> list[_Setting]:
    """Settings of a value: one for each key of a table, recursively."""
    if isinstance(value, dict) and (value or not prefix):
        return [s for name, inner in value.items() for s in _flatten((*prefix, name), inner, source)]
    return [_Setting(prefix, value, source)]


def _validated(settings: Sequence[_Setting], problems: list[str]) -> RunConfig:
    tree: dict[str, Any] = {}
    sources: dict[KeyPath, str] = {}
    for setting in settings:
        branch = tree
        for part in setting.key[:-1]:
            inner = branch.setdefault(part, {})
            if not isinstance(inner, dict):  # a section was given as a plain value: say so below
                break
            branch = inner
        else:
            branch[setting.key[-1]] = setting.value
            sources[setting.key] = setting.source
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        problems += [line for line in explain(error, sources) if line not in problems]
        config = RunConfig()
    if problems:
        count = f"{len(problems)} settings are wrong:\n" if len(problems) > 1 else ""
        raise ConfigurationError(count + "\n".join(map(one_line, problems)))
    return config
