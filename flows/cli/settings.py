"""`spotlight settings`: the list of settings, and the shell's completion."""

from __future__ import annotations

import difflib
import json
from importlib.metadata import version
from typing import Annotated

import typer
from rich.table import Table

from flows.terminal import console
from storage.config.errors import ALIASES
from storage.config.loading import list_presets
from storage.config.run_config import RunConfig
from storage.config.settings_table import SettingEntry, list_settings, settings_page
from storage.errors import ConfigurationError, quoted


def settings(
    section: Annotated[
        str | None,
        typer.Argument(help="A section, as in sampling, a setting, or a word to look for; all by default."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object with an entry for each setting.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print all settings as docs/reference/settings.md.")
    ] = False,
) -> None:
    """List the settings of a run: default, bounds, description."""
    if as_markdown:
        if section or as_json:
            raise ConfigurationError("--markdown writes the whole page; leave SECTION and --json out")
        typer.echo(settings_page(), nl=False)
        return
    entries = list_settings(section or "") or _about(section or "")
    if not entries:
        raise ConfigurationError(_no_such(section or ""))
    if as_json:
        facts = {
            one.name: {"default": one.default, "bounds": one.bounds, "description": one.description}
            for one in entries
        }
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    table = Table("setting", "default", "bounds", "description")
    for entry in entries:
        table.add_row(entry.name, entry.default_text, entry.bounds, entry.description, end_section=True)
    console().print(table)


def _about(word: str) -> list[SettingEntry]:
    """Return the settings with a word in their name, their description or their common synonyms."""
    word = word.lower()
    if word in ALIASES and (meant := list_settings(ALIASES[word])):
        return meant
    return [entry for entry in list_settings() if word in f"{entry.name} {entry.description}".lower()]


def _no_such(name: str) -> str:
    known = [*RunConfig.model_fields, *setting_names("")]
    near = difflib.get_close_matches(name, [one.rstrip("=") for one in known], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"no section or setting {quoted(name)}; {hint}there are {', '.join(RunConfig.model_fields)}"


def preset_names(incomplete: str) -> list[str]:
    """Return the presets whose names begin with `incomplete`, for the shell's completion."""
    return [preset.name for preset in list_presets() if preset.name.startswith(incomplete)]


def setting_names(incomplete: str) -> list[str]:
    """Return the matching settings, each followed by `=`, for the shell's completion."""
    return [f"{one.name}=" for one in list_settings() if one.name.startswith(incomplete)]


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"spotlight {version('spotlight')}")
        raise typer.Exit


def version_option(
    _: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Options of `spotlight` itself."""
