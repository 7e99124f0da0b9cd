"""Plug-ins: objects named by a setting, and the options that they declare.

A name in the settings is a built-in short name, an installed package's entry point, `package.module:Name`, or
`path/to/file.py:Name`. Nothing is imported before it is used.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, ValidationError

from storage.config.errors import explain, origin_of
from storage.config.run_config import RunConfig
from storage.config.section import Section
from storage.errors import ConfigurationError, quoted
from storage.text import one_line

_ROOMS = [Path(__file__).resolve().parents[2] / room for room in ("flows", "tasks", "gpu_runtime", "storage")]
"""Folders of Spotlight's own code, whose commit a run records."""

Kind = TypeVar("Kind")
Options = TypeVar("Options", bound=Section)


class NoOptions(Section):
    """Options of a plug-in that declares none."""


@dataclass(frozen=True)
class HubModel:
    """Marks an option that names a model: a folder, or a name in this machine's Hub cache.

    Attributes:
        weights: True if its weights are needed; False if tokenizer and picture size suffice.
    """

    weights: bool = True


def _absolute_folder(name: str) -> str:
    folder = os.path.expanduser(name)
    return os.path.abspath(folder) if os.path.isdir(folder) else name


ModelName = Annotated[str, AfterValidator(_absolute_folder), HubModel()]
"""An option that names a model with its weights. A folder becomes absolute."""

ProcessorName = Annotated[str, AfterValidator(_absolute_folder), HubModel(weights=False)]
"""An option that names a model for its tokenizer and picture size."""


class Registry(Generic[Kind]):
    """Plug-ins of one kind by name.

    Args:
        setting: the setting that names one, for messages.
        group: entry-point group with which installed packages add more.
        own: the built-in ones, by short name.
        adapt: converts another object that a setting names, given the name too; None if it cannot.
        refuse: raises `ConfigurationError` for settings that do not fit a plug-in and its options.
    """

    def __init__(
        self,
        setting: str,
        kind: type[Kind],
        group: str,
        own: Mapping[str, Kind],
        adapt: Callable[[str, object], Kind | None] = lambda name, found: None,
        refuse: Callable[[RunConfig, Kind, Any], None] = lambda config, plugin, options: None,
    ) -> None:
        self.setting = setting
        self.group = group
        self._kind = kind
        self._own = dict(own)
        self._adapt = adapt
        self._refuse = refuse

    def names(self) -> list[str]:
        """Return all short names: built-in ones, and those of installed packages."""
        return [*self._own, *sorted(entry_points(group=self.group).names - self._own.keys())]

    def find(self, name: str, setting: str = "") -> Kind:
        """Return the plug-in of that name; messages name `setting` if it is not the registry's.

        Raises:
            ConfigurationError: it does not exist, cannot be imported, or is of another kind.
        """
        if name in self._own:
            return self._own[name]
        path = self._path(name, setting)
        said = f"{self._given(name, setting)}: "
        try:
            found = _named(path)
        # The module is third-party code and may raise anything on import.
        except (Exception, SystemExit) as error:  # a script without a guard ends itself
            raise ConfigurationError(f"{said}{self._not_imported(path, error)}") from error
        if isinstance(found, self._kind):
            return found
        try:
            adapted = self._adapt(name, found)
        except ConfigurationError as error:
            raise ConfigurationError(f"{said}{error}") from error
        if adapted is None:
            raise ConfigurationError(
                f"{said}{quoted(path)} is a {type(found).__name__}, not a {self._kind.__name__}; name one "
                f"(see {self._kind.__module__})"
            )
        return adapted

    def sources(self, name: str) -> list[Path]:
        """Return the source files of the plug-in of that name, except Spotlight's own.

        The first is its module's; the second its code's, if the module imports it from elsewhere.

        Raises:
            ConfigurationError: as `find` does.
        """
        self.find(name)
        if name in self._own:
            return []
        path = self._path(name, "")
        found = _named(path)
        # Code typed into Python or a notebook has no file; a module may be in an archive.
        files = (getattr(_module(path), "__file__", None), _code_file(getattr(found, "build", found)))
        known = [Path(file) for file in dict.fromkeys(files) if file is not None and os.path.isfile(file)]
        return [file for file in known if not any(map(file.resolve().is_relative_to, _ROOMS))]

    def _path(self, name: str, setting: str) -> str:
        """Return `package.module:Name` or `path/to/file.py:Name` for a name that is not the project's."""
        if ":" in name:
            return name
        paths = sorted({entry.value for entry in entry_points(group=self.group, name=name)})
        if len(paths) > 1:
            raise ConfigurationError(
                f"{self._given(name, setting)}: several installed packages define that name "
                f"({', '.join(paths)}); write which one"
            )
        if paths:
            return paths[0]
        near = difflib.get_close_matches(name.lower(), self.names(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigurationError(
            f"{self._given(name, setting)}: unknown name; {hint}choose one of "
            f"{', '.join(self.names())}, or write package.module:Name or path/to/file.py:Name"
        )

    def chosen(self, settings: Any) -> tuple[Kind, Any]:
        """Return the plug-in chosen in a section of the settings, and its options.

        Raises:
            ConfigurationError: there is none of that name, or one of its options is wrong.
        """
        section, name = self.setting.split(".")
        plugin: Any = self.find(getattr(settings, name))
        return plugin, read_options(f"{section}.options", plugin.options, settings.options)

    def stored(self, config: RunConfig) -> RunConfig:
        """Return the settings with the chosen plug-in's options in the form that is stored.

        Raises:
            ConfigurationError: there is none of that name, one of its options is wrong, or a setting does not
                fit it.
        """
        section = self.setting.split(".")[0]
        plugin, options = self.chosen(getattr(config, section))
        self._refuse(config, plugin, options)
        return config.changed(**{section: {"options": as_values(options)}})

    def _given(self, name: str, setting: str) -> str:
        setting = setting or self.setting
        origin = origin_of(f"{setting}.{name}")  # of the value, or of the name among the keys of a table
        return f"{setting} = {quoted(name)}{origin}"

    def _not_imported(self, path: str, error: BaseException) -> str:
        advice = "check the name, and that its folder is installed or in PYTHONPATH"
        file, _, name = path.rpartition(":")
        if file.endswith(".py"):
            advice, file = "correct it, or install what it imports", _absolute(file)
            if not os.path.isfile(file):
                return f"{quoted(file)} does not exist"
            if module := sys.modules.get(f"file {file}"):
                has = [
                    each
                    for each, value in vars(module).items()
                    if not each.startswith("_")
                    and (isinstance(value, self._kind) or getattr(value, "__module__", "") == module.__name__)
                ]
                return f"{quoted(file)} has no {quoted(name)}; it has {', '.join(has) or 'nothing to name'}"
        reason = f"{type(error).__name__}: {one_line(str(error))}"
        return f"{quoted(path)} cannot be imported ({reason}); {advice}"


def lazily(path: str) -> Callable[..., Any]:
    """Return a function that imports `package.module:Name` and calls it."""
    return partial(_resolved, path)


def _resolved(path: str, *given: Any) -> Any:
    return resolve_name(path)(*given)


def absolute_name(name: str) -> str:
    """Return a plug-in's name, with its file's path made absolute if it has one."""
    file, _, attribute = name.rpartition(":")
    return f"{_absolute(file)}:{attribute}" if file.endswith(".py") else name


def _absolute(file: str) -> str:
    return os.path.abspath(os.path.expanduser(file))


def _named(path: str) -> Any:
    """Import the object named by `package.module:Name` or `path/to/file.py:Name`."""
    found: Any = _module(path)
    for part in path.rpartition(":")[2].split("."):
        found = getattr(found, part)
    return found


def _code_file(thing: Any) -> str | None:
    """Return the file in which a function, a class or an object's class is written; None if unknown.

    Decorators, `partial` and `lazily` are unwrapped.
    """
    try:
        while isinstance(thing := inspect.unwrap(thing), partial):
            if thing.func is _resolved:
                spec = importlib.util.find_spec(thing.args[0].partition(":")[0])
                return spec and spec.origin
            thing = thing.func
        return inspect.getsourcefile(
            thing if inspect.isroutine(thing) or inspect.isclass(thing) else type(thing)
        )
    except (ImportError, OSError, TypeError, ValueError):  # no such module, a C module, or it wraps itself
        return None


def _module(path: str) -> ModuleType:
    """Import the module of `package.module:Name` or `path/to/file.py:Name`."""
    module = path.rpartition(":")[0]
    if not module.endswith(".py"):
        return importlib.import_module(module)
    file = _absolute(module)
    name = f"file {file}"  # not in a package; imported once per path
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None, "its name ends in .py"
        sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def read_options(setting: str, model: type[Options], values: Mapping[str, Any]) -> Options:
    """Return a plug-in's options, validated as it declares them.

    Args:
        setting: their path, such as `reward.options`.

    Raises:
        ConfigurationError: one line for each problem.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        lines = explain(error, model, setting)
        if any(problem["type"] == "extra_forbidden" for problem in error.errors()):
            lines[-1] += f" ({setting}={{}} drops what a preset says there)"
        count = f"{len(lines)} settings are wrong:\n" if len(lines) > 1 else ""
        raise ConfigurationError(count + "\n".join(map(one_line, lines))) from error


def as_values(options: Section) -> dict[str, Any]:
    """Return options as stored: given values, with absolute folders."""
    return options.model_dump(mode="json", exclude_unset=True)


def hub_models(options: Section) -> dict[str, HubModel]:
    """Return the options that name models, and what each must provide."""
    return {
        name: mark
        for name, field in type(options).model_fields.items()
        for mark in field.metadata
        if isinstance(mark, HubModel)
    }
