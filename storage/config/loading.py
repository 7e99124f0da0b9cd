"""A run's configuration from all its sources, with errors a person can act on.

Later sources win: the defaults, a preset (TOML), the environment, `--set section.key=value`.

Environment: `SPOTLIGHT_SEED=3` sets a top-level setting, `SPOTLIGHT_SAMPLING__NOISE_LEVEL=0.5` one
of a section (two underscores for the dot). An unknown name with two underscores is refused; the project's
other variables (`OTHER_VARIABLES`) are left alone.
"""

from __future__ import annotations

import difflib
import itertools
import json
import os
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from storage.config.errors import GIVEN_BY, dotted, explain, model_of, naming_sources
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, quoted, shortened
from storage.home import (
    DASHBOARD_URL_VARIABLE,
    FOLDER_VARIABLE,
    HOME_VARIABLE,
    PURPOSE_VARIABLE,
    UP_VARIABLE,
)
from storage.text import one_line, read_text_file

PRESETS = Path(__file__).resolve().parents[2] / "presets"
"""Folder of the named presets."""

BASES = PRESETS / "bases"
"""Folder of shared bases: `extends = ["NAME", ...]` at a preset's top applies these, or other presets with
their bases, before it."""

PREFIX = "SPOTLIGHT_"

OTHER_VARIABLES = {
    HOME_VARIABLE, UP_VARIABLE, FOLDER_VARIABLE, DASHBOARD_URL_VARIABLE, PURPOSE_VARIABLE,
}  # fmt: skip
"""Environment variables of the project that are not run settings."""

EVIDENCE = ("tiny weights", "embedded run", "embedded curve", "one GPU step", "GPU curve")
"""Levels that `evidence = "LEVEL"` at a preset's top may claim; a test compares them with kept results.

The key is not a run setting. `tiny weights`: the family equals diffusers' on tiny random weights;
`embedded run`: a small model runs on a CPU; `embedded curve`: a small model learned the task."""

_Layer = tuple[str, dict[str, Any]]
"""A source, and its settings, nested as in a preset."""

_Change = tuple[str, Any]
"""A setting by its dotted name, and its value as JSON."""

Given = Sequence[str | tuple[str, Any]]
"""Settings that a person gives: `section.key=value` as text, or the dotted name with a Python value."""

_CHOICES = (
    ("model", "family"), ("algorithm", "objective"), ("exploration", "strategy"), ("reward", "scorer"),
    ("evaluation", "judge"), ("runtime", "capacity"),
)  # fmt: skip
"""Settings that choose a plug-in; its options are in `options` of the same section."""


@dataclass(frozen=True)
class Preset:
    """A named preset; its first line, a comment, gives its purpose (`summary`)."""

    name: str
    path: Path
    summary: str
    evidence: str


def list_presets() -> list[Preset]:
    """Return the named presets."""
    presets: list[Preset] = []
    for path in sorted(PRESETS.glob("*.toml"), key=lambda path: path.stem):
        text = path.read_text(encoding="utf-8")
        summary = text.partition("\n")[0].removeprefix("#").strip()
        presets.append(Preset(path.stem, path, summary, tomllib.loads(text).get("evidence", "")))
    return presets


def load_config(
    preset: str | None, sets: Given, environ: Mapping[str, str], base: RunConfig | None = None
) -> RunConfig:
    """Assemble a configuration as `load_with_sources` does, without returning the sources.

    Args:
        preset, sets, environ, base: as there.
    """
    return load_with_sources(preset, sets, environ, base)[0]


def load_with_sources(
    preset: str | None, sets: Given, environ: Mapping[str, str], base: RunConfig | None = None
) -> tuple[RunConfig, Mapping[str, str]]:
    """Assemble a configuration; later sources win. Return it, and the sources of its non-default values.

    Args:
        preset: name of a preset, or path of a TOML file; None for the defaults.
        sets: settings; a value in text is read as TOML, else taken as it stands.
        environ: the environment to read `SPOTLIGHT_*` from.
        base: an earlier run's configuration to start from, replacing the defaults.

    Raises:
        ConfigurationError: any problem, one line each: the setting, its value, the allowed values.
    """
    problems: list[str] = []
    layers: list[_Layer] = []
    if base is not None:
        layers.append(("the run's configuration", differences(base)))
    if preset is not None:
        layers += _layers_of(preset, _read_toml(_preset_path(preset)))
    below, layers = layers, []
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        name = variable.removeprefix(PREFIX).lower().replace("__", ".")
        # A name unlike any setting is some other tool's variable.
        if "." in name or difflib.get_close_matches(name, RunConfig.model_fields, n=1, cutoff=0.8):
            layers.append(_parsed(name, text, variable))
    for assignment in sets:
        if isinstance(assignment, tuple):
            name, value = assignment
            layers.append((GIVEN_BY.get(), _nested(name, value)))
            continue
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            problems.append(
                f"--set {shortened(assignment)}: write section.key=value, as in sampling.noise_level=0.5"
            )
            continue
        layers.append(
            _parsed(dotted([part.strip() for part in name.split(".")]), text.strip(), GIVEN_BY.get())
        )
    _drop_options_of_others([*([layer] for layer in below), layers])
    layers = [*below, *layers]
    sources: dict[str, str] = {}
    for origin, values in layers:
        for name, _ in flat(values):
            for around in itertools.accumulate(name.split("."), "{}.{}".format):
                sources.pop(around, None)  # a table replaces the value below
            sources[name] = origin
    with naming_sources(sources):
        return _validated(layers, problems), sources


def python_settings(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return Python settings, nested or by dotted name, as `load_with_sources` takes them.

    Paths become text; numbers and arrays of NumPy or similar libraries become Python's.

    Raises:
        ConfigurationError: a value is None or of another type.
    """
    return [(name, _plain(name, value)) for name, value in flat(settings)]


def _plain(name: str, value: Any) -> Any:
    if value is None:
        raise ConfigurationError(f"{name} = None: leave the setting out to keep its default")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [_plain(name, one) for one in value]
    if callable(getattr(value, "tolist", None)):
        plain = value.tolist()
        # A float32 of 0.3 means 0.3, as printed, not 0.30000001192092896.
        return float(str(value)) if isinstance(plain, float) else plain
    if isinstance(value, (str, int, float, Mapping)):
        return value
    advice = "; write it into a file, and give 'FILE.py:NAME'" * callable(value)
    raise ConfigurationError(
        f"{name} = {value!r}: give text, a number, True or False, a path, or a list of these{advice}"
    )


def by_name(config: RunConfig) -> dict[str, Any]:
    """Return settings by dotted name (JSON values); the options of a plug-in are one setting."""
    found: dict[str, Any] = {}
    for name, value in config.model_dump(mode="json").items():
        is_section = isinstance(value, dict)
        found |= {f"{name}.{key}": each for key, each in value.items()} if is_section else {name: value}
    return found


def differing(one: RunConfig, other: RunConfig) -> dict[str, Any]:
    """Return the settings that differ, by dotted name, with their values in the other."""
    before = by_name(one)
    return {name: value for name, value in by_name(other).items() if value != before[name]}


def differences(config: RunConfig) -> dict[str, Any]:
    """Return a configuration's non-default values, nested as in a preset (JSON values)."""
    return reduce(_merged, (_nested(*change) for change in differing(RunConfig(), config).items()), {})


def assignments(config: RunConfig, base: RunConfig) -> list[str]:
    """Return the `--set` values that turn `base`, as given by a preset, into another configuration."""
    found = []
    for name, value in _changes("", base.model_dump(mode="json"), config.model_dump(mode="json")):
        is_bare = isinstance(value, str) and value == value.strip() and value[:1] not in ("'", '"')
        found.append(f"{name}={value if is_bare and _takes_text(name) else _as_toml(value)}")
    return found


def _changes(prefix: str, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[_Change]:
    for name, value in wanted.items():
        before: Any = given.get(name)
        both = isinstance(value, dict) and isinstance(before, dict)
        # A table can be changed by assignments unless a key is gone, or has a dot.
        if both and before.keys() <= value.keys() and not any("." in inner for inner in value):
            yield from _changes(f"{prefix}{name}.", before, value)
        elif value != before:
            yield f"{prefix}{name}", value


def _as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(name)} = {_as_toml(each)}' for name, each in value.items())}}}"
    return f"[{', '.join(map(_as_toml, value))}]" if isinstance(value, list) else json.dumps(value)


def _drop_options_of_others(groups: Sequence[Sequence[_Layer]]) -> None:
    """Drop a group's options for a plug-in that a later group replaces, such as another scorer."""
    defaults = RunConfig()
    for section, name in _CHOICES:
        had = getattr(getattr(defaults, section), name)
        for number, group in enumerate(groups):
            tables = [values.get(section) for _, values in group]
            chosen = [table[name] for table in tables if isinstance(table, dict) and name in table]
            if not chosen or chosen[-1] in (None, had):
                continue
            had = chosen[-1]
            for _, values in itertools.chain(*groups[:number]):
                if isinstance(values.get(section), dict):
                    values[section].pop("options", None)


def _layers_of(preset: str, values: dict[str, Any]) -> list[_Layer]:
    """Return a preset's bases in order, each after its own bases, then the preset."""
    named, claimed = values.pop("extends", []), values.pop("evidence", EVIDENCE[0])
    if claimed not in EVIDENCE:
        raise ConfigurationError(
            f"preset {preset}: evidence is {quoted(claimed)}; write one of {', '.join(EVIDENCE)}, or leave "
            "it out"
        )
    bases = [named] if isinstance(named, str) else named
    shared = sorted(path.stem for path in BASES.glob("*.toml"))
    layers: list[_Layer] = []
    for base in bases if isinstance(bases, list) else [bases]:
        if base in shared:
            layers.append((f"base {base} of preset {preset}", _read_toml(BASES / f"{base}.toml")))
        elif base in [known.name for known in list_presets()]:
            layers += _layers_of(base, _read_toml(PRESETS / f"{base}.toml"))
        else:
            raise ConfigurationError(
                f"preset {preset}: extends names {base!r}, and there is no such base; there are "
                f"{', '.join(shared)}, and the presets"
            )
    return [*layers, (f"preset {preset}", values)]


def _preset_path(preset: str) -> Path:
    if preset.endswith(".toml") or "/" in preset:
        return Path(preset)
    names = [known.name for known in list_presets()]
    if preset in names:
        return PRESETS / f"{preset}.toml"
    longer = [name for name in names if preset and name.startswith(preset)]
    near = longer or difflib.get_close_matches(preset, names, n=1)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ConfigurationError(
        f"no preset {quoted(preset)}; {hint}there are {', '.join(names) or 'none'}; or give a path to a "
        ".toml file"
    )


def _read_toml(path: Path) -> dict[str, Any]:
    text = read_text_file(path, f"preset {path}", ConfigurationError)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # bad TOML, endless brackets
        raise ConfigurationError(f"preset {path} is not valid TOML: {error}") from error


def _parsed(name: str, text: str, source: str) -> _Layer:
    value: Any = text
    if not _takes_text(name) or text[:1] in ("'", '"'):
        with suppress(ValueError, RecursionError):  # not TOML: plain text
            table = tomllib.loads(f"value = {text}")
            value = table["value"] if len(table) == 1 else text
    return source, _nested(name, value)


def _takes_text(name: str) -> bool:
    """Return True for a string setting, for which `--set name=42` means the text 42."""
    *section, last = name.split(".")
    model = model_of(RunConfig, section)
    if model is None or last not in model.model_fields:
        return False
    kind = model.model_fields[last].annotation
    literals = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
    return kind is str or (bool(literals) and all(isinstance(value, str) for value in literals))


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[_Change]:
    """Yield each setting of nested tables by its dotted name, with its value; an empty table is a value."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _nested(name: str, value: Any) -> dict[str, Any]:
    return reduce(lambda inner, part: {part: inner}, reversed(name.split(".")), value)


def _merged(below: Any, above: Any, depth: int = 0) -> Any:
    """Return tables merged key by key; a section's empty table, such as options, replaces the one below."""
    if not (isinstance(below, dict) and isinstance(above, dict)) or (depth == 2 and not above):
        return above
    return below | {name: _merged(below.get(name), value, depth + 1) for name, value in above.items()}


def _validated(layers: Sequence[_Layer], problems: list[str]) -> RunConfig:
    try:
        config = RunConfig.model_validate(reduce(_merged, (values for _, values in layers), {}))
    except ValidationError as error:
        problems += [line for line in explain(error) if line not in problems]
        config = RunConfig()
    if problems:
        count = f"{len(problems)} settings are wrong:\n" if len(problems) > 1 else ""
        raise ConfigurationError(count + "\n".join(map(one_line, problems)))
    return config


def stored_config(stored: Mapping[str, Any], owner: str, advice: str) -> RunConfig:
    """Read a configuration as `RunConfig.model_dump(mode="json")` stored it.

    Args:
        owner: its owner, for messages: `run glyphs-1`.
        advice: what to do if it cannot be read.

    Raises:
        ConfigurationError: this version does not have its settings or values.
    """
    try:
        return RunConfig.model_validate(stored)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise ConfigurationError(
            f"{owner} was made with other settings than this version has "
            f"({dotted(tuple(map(str, first['loc'])))}: {first['msg']}); {advice}"
        ) from error
