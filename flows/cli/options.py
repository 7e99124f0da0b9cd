"""Options and arguments of several commands: runs by name, presets, settings, clusters, addresses."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from flows.run_identity import LAST, find_run
from storage.config.loading import list_presets
from storage.config.settings_table import list_settings
from storage.config.what_if import WhatIfQuestion
from storage.errors import SpotlightError
from storage.home import Home

ClusterName = StrEnum("ClusterName", ["ray", "local"])


def run_names(incomplete: str) -> list[str]:
    """Return the runs whose identifiers begin with `incomplete`, for the shell's completion."""
    try:
        known = Home.from_environment().run_ids()
    except SpotlightError:
        return []
    return [name for name in [LAST, *known] if name.startswith(incomplete)]


def preset_names(incomplete: str) -> list[str]:
    """Return the presets whose names begin with `incomplete`, for the shell's completion."""
    return [preset.name for preset in list_presets() if preset.name.startswith(incomplete)]


def setting_names(incomplete: str) -> list[str]:
    """Return the matching settings, each followed by `=`, for the shell's completion."""
    return [f"{one.name}=" for one in list_settings() if one.name.startswith(incomplete)]


def named_run(given: str | list[str] | None) -> str | list[str] | None:
    """Return the identifier of each named run, as `flows.run_identity.find_run` does."""
    if isinstance(given, list):
        return [find_run(Home.from_environment(), text) for text in given]
    return None if given is None else find_run(Home.from_environment(), given)


_HELP = "A run: its identifier, a prefix of it, or `last`."


def run_argument(help: str, metavar: str | None = None) -> Any:
    """Return an argument that names a run."""
    return typer.Argument(metavar=metavar, help=help, callback=named_run, autocompletion=run_names)


RunName = Annotated[str, run_argument(_HELP, "RUN")]
OptionalRunName = Annotated[
    str | None, run_argument(f"{_HELP} Without it, the preset's untouched model.", "[RUN]")
]
RunNames = Annotated[list[str], run_argument("A recorded run, or several of one fleet.", "RUN...")]
Evaluated = Annotated[
    str | None,
    typer.Argument(
        help="An evaluation, or a run for its newest one.", callback=named_run, autocompletion=run_names
    ),
]
Preset = Annotated[
    str | None,
    typer.Option("--preset", "-p", help="A preset's name, or a TOML file.", autocompletion=preset_names),
]


def set_option(meaning: str) -> Any:
    """Return the option `--set` with a command's help text."""
    return typer.Option(
        "--set", "-s", metavar="SECTION.KEY=VALUE", help=meaning, autocompletion=setting_names
    )


Sets = Annotated[list[str] | None, set_option("Override one setting; repeatable.")]
RayAddress = Annotated[
    str | None, typer.Option(help="A running Ray cluster; without it a local one is started.")
]
ClusterKind = Annotated[
    ClusterName | None,
    typer.Option(help="How processes start: ray, or local, which forks them on this machine."),
]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="Another host name by which it is reached, such as a proxy's; repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, one object a line.")]


def takes_question(**changes: dict[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take each field of `WhatIfQuestion` as an option, and get those given as `question`.

    An option has its field's name, type, bounds, description and default.

    Args:
        changes: other arguments of `typer.Option`, by field.
    """
    options: list[inspect.Parameter] = []
    for name, field in WhatIfQuestion.model_fields.items():
        low, high = WhatIfQuestion.bounds(name)
        about: dict[str, Any] = {"help": field.description, "show_default": str(field.default) or False}
        about |= {"min": low, "max": high, **changes.get(name, {})}
        option = Annotated[field.annotation | None, typer.Option(**about)]
        options.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        )

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**values: Any) -> None:
            given = {one.name: value for one in options if (value := values.pop(one.name)) is not None}
            command(question=WhatIfQuestion.checked(given), **values)

        placed: list[inspect.Parameter] = []
        for own in inspect.signature(command, eval_str=True).parameters.values():
            placed += options if own.name == "question" else [own]
        vars(run)["__signature__"] = inspect.Signature(placed)
        run.__annotations__ = {option.name: option.annotation for option in placed}
        return run

    return decorated
