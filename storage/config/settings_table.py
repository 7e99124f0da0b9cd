"""Every setting with its default, bounds and description (a field's docstring), from `RunConfig`.

`spotlight settings --markdown > docs/reference/settings.md` writes the page of the documentation.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from storage.config.errors import dotted, model_of
from storage.config.run_config import RunConfig
from storage.config.section import LARGEST_COUNT

_BOUNDS = (
    ("exclusiveMinimum", "above {}"),
    ("minimum", "at least {}"),
    ("exclusiveMaximum", "below {}"),
    ("maximum", "at most {}"),
)

_KINDS = {
    "boolean": "true or false",
    "integer": "integer",
    "number": "number",
    "string": "text",
    "array": "list of texts",
    "object": "table",
}

_SHOWN_BY_DEFAULT = re.compile(r"^(integer|number) |^(text|true or false|list of texts)$")
"""The part of bounds that the page omits, since the default shows it."""

_HEAD = """\
# Settings

Every setting of a run, from the docstrings in `storage/config` (`spotlight settings --markdown` writes this
page). `spotlight settings SECTION` shows one section, `spotlight settings WORD` the settings with a word.

A value comes from the default, the preset (`--preset`), the environment (`SPOTLIGHT_SEED=3`,
`SPOTLIGHT_SAMPLING__NOISE_LEVEL=0.5`), or the command line (`--set sampling.noise_level=0.5`); the later of
these wins. A section's `options` are declared by its plug-in. Defaults without a point are integers.
"""


@dataclass(frozen=True)
class SettingEntry:
    """A setting.

    Attributes:
        name: as `--set` takes it: `sampling.noise_level`.
        default: a JSON value.
        bounds: allowed values as text: `number above 0, at most 2`.
        description: one paragraph.
    """

    name: str
    default: Any
    bounds: str
    description: str

    @property
    def section(self) -> str:
        """The name up to its last dot; empty at the top level."""
        return self.name.rpartition(".")[0]

    @property
    def default_text(self) -> str:
        """The default as a preset or `--set` would give it."""
        return json.dumps(self.default, ensure_ascii=False)


def list_settings(section: str = "") -> list[SettingEntry]:
    """Return the settings of a section, or the one of that name; all by default."""
    entries = _entries(RunConfig, RunConfig().model_dump(mode="json"), ())
    return [one for one in entries if not section or f"{one.name}.".startswith(f"{section}.")]


def settings_page() -> str:
    """All settings as Markdown."""
    parts = [_HEAD]
    section: str | None = None
    for entry in list_settings():
        if entry.name.endswith(".options"):
            continue  # the plug-in declares them
        if entry.section != section:
            section = entry.section
            model = model_of(RunConfig, section.split(".") if section else ())
            purpose = " ".join((model.__doc__ or "").split())
            parts.append(f"\n## {f'`{section}`' if section else 'The run'}\n\n{purpose}\n\n")
            parts.append("| setting | default | bounds | description |\n|---|---|---|---|\n")
        bounds = _SHOWN_BY_DEFAULT.sub("", entry.bounds)
        cells = (f"`{entry.name.rpartition('.')[2]}`", f"`{entry.default_text}`", bounds, entry.description)
        parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n")
    return "".join(parts)


def _entries(model: type[BaseModel], defaults: Any, path: tuple[str, ...]) -> list[SettingEntry]:
    own: list[SettingEntry] = []
    inner: list[SettingEntry] = []
    schemas = model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        kind, key = field.annotation, (*path, name)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            inner += _entries(kind, defaults[name], key)
        else:
            description = " ".join((field.description or "").split())
            own.append(SettingEntry(dotted(key), defaults[name], _bounds(schemas[name]), description))
    return own + inner


def _bounds(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(map(_bounds, schema["anyOf"]))
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        *others, last = schema["enum"]
        return f"{', '.join(map(str, others))} or {last}"
    words = [_KINDS[schema["type"]]]
    if schema.get("maximum", 0) >= LARGEST_COUNT:
        words.append(f"at least {_figure(schema['minimum'])}")  # the maximum only prevents an overflow
    elif schema.keys() >= {"minimum", "maximum"}:
        words.append(f"{_figure(schema['minimum'])} to {_figure(schema['maximum'])}")
    else:
        words += [form.format(_figure(schema[name])) for name, form in _BOUNDS if name in schema]
    if "pattern" in schema:
        words.append(f"matching `{schema['pattern']}`")
    return f"{words[0]} {', '.join(words[1:])}".strip()


def _figure(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:g}"
