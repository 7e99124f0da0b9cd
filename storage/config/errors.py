"""Validation errors as text: setting, value, limit and next step, one line each."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticUndefined

from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, SpotlightError

M = TypeVar("M", bound=BaseModel)

_NAMES_ELSEWHERE = {
    "optimizer.learning_rate": "lr learning_rate",
    "optimizer.warmup_steps": "warmup",
    "iterations": "epochs num_epochs max_steps",
    "sampling.rollout_steps": "steps num_steps num_inference_steps",
    "model.guidance": "guidance_scale cfg",
    "model.height": "resolution",
    "sampling.batch_size": "batch_size",
    "algorithm.group_size": "num_generations",
    "algorithm.kl_weight": "beta kl_coef kl",
    "algorithm.options.clip_range": "clip_range",
    "algorithm.objective": "algorithm.name algorithm.algorithm algo loss",
    "adaptation.rank": "lora_rank lora.rank",
    "adaptation.mode": "lora",
    "reward.scorer": "reward.name reward_fn",
    "model.path": "model.name pretrained_model",
    "tracking.to": "wandb report_to logger notify slack webhook",
    "runtime.reserved_workers": "gpus num_gpus",
    "checkpoint.every": "save_every save_freq",
    "evaluation.every": "eval_every eval_freq",
    "budget.hours": "max_hours",
    "budget.usd": "max_cost",
}
ALIASES = {name: setting for setting, names in _NAMES_ELSEWHERE.items() for name in names.split()}
"""Other trainers' names for settings."""

_SOURCES: ContextVar[Mapping[str, str]] = ContextVar("sources of the settings")

GIVEN_BY: ContextVar[str] = ContextVar("option or argument that gives settings", default="--set")
"""How a person gives a setting: `--set`, or a Python argument."""

_BOUNDS = {
    "greater_than": ("must be above", "gt", "raise it"),
    "greater_than_equal": ("must be at least", "ge", "raise it"),
    "less_than": ("must be below", "lt", "lower it"),
    "less_than_equal": ("must be at most", "le", "lower it"),
}

_KINDS = {"finite_number": "must be finite", "int": "must be a whole number",
          "float": "must be a number", "dict": "must be a table, as in {name = 1}",
          "string_too_short": "must not be empty", "string": "must be text",
          "bool": "must be true or false", "tuple": 'must be a list, as in ["a", "b"]'}  # fmt: skip


def dotted(key: Sequence[str | int]) -> str:
    """The name of a setting as a person writes it: `sampling.noise_level`."""
    return ".".join(map(str, key))


@contextmanager
def naming_sources(sources: Mapping[str, str]) -> Iterator[None]:
    """Make refusals inside the block name the value's source (a preset, --set); `sources` is by setting.

    A context, not an argument: several registries find plug-ins and read their options, and need the sources
    for nothing else.
    """
    token = _SOURCES.set(sources)
    try:
        yield
    finally:
        _SOURCES.reset(token)


def origin_of(setting: str) -> str:
    """` (from --set)` if the source of a setting, of the table around it, or of all in it is known."""
    sources, parts = _SOURCES.get({}), setting.split(".")
    outwards = (dotted(parts[:depth]) for depth in range(len(parts), 0, -1))
    found = next(({sources[name]} for name in outwards if name in sources), set[str]())
    found = found or {source for name, source in sources.items() if name.startswith(f"{setting}.")}
    return f" (from {found.pop()})" if len(found) == 1 else ""


def as_given(settings: Mapping[str, str]) -> str:
    """Return settings as a person would give them: `--set` options, or a Python argument."""
    if (source := GIVEN_BY.get()) == "--set":
        return " ".join(f"{source} {name}={value}" for name, value in settings.items())
    return f"{source}={json.dumps(settings)}"


def explain(error: ValidationError, model: type[BaseModel] = RunConfig, section: str = "") -> list[str]:
    """Return one line per problem of a configuration, with its source (`naming_sources`).

    Args:
        model: the validated model.
        section: its path in the settings, such as `reward.options`; empty for all settings.
    """
    prefix = f"{section}." if section else ""
    return [_line(problem, model, prefix) for problem in error.errors(include_url=False)]


def read_row(
    row: object, where: str, model: type[M], failure: type[SpotlightError] = ConfigurationError
) -> M:
    """Validate a row of a file strictly: text is not converted to a number.

    Args:
        where: file and row, for messages.
        failure: raised if the row is not a table, or a value is missing, unknown or out of range.
    """
    if not isinstance(row, Mapping):
        raise failure(f"{where}: {_shown(row)} has no {', '.join(model.model_fields)}; write a table of them")
    try:
        return model.model_validate(row, strict=True)
    except ValidationError as error:
        raise failure(f"{where}: {'; '.join(explain(error, model))}") from error


def model_of(model: type[BaseModel], section: Sequence[str]) -> type[BaseModel] | None:
    """Return the model of a section inside another; None if there is no such section."""
    found: Any = model
    for part in section:
        if part not in found.model_fields:
            return None
        found = found.model_fields[part].annotation
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            return None
    return found


def _line(problem: ErrorDetails, model: type[BaseModel], prefix: str) -> str:
    key = tuple(map(str, problem["loc"]))
    name = f"{prefix}{dotted(key)}"
    if problem["type"] == "value_error":  # our own check: its message names settings and values
        return problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"{name}{origin_of(name)}: {_unknown(key, model, prefix)}"
    if problem["type"] == "missing":
        return f"{name} has no value; set {name}=..."
    return f"{name} = {_shown(problem['input'])}{origin_of(name)}: {_reason(problem, key, model)}"


def _reason(problem: ErrorDetails, key: Sequence[str], model: type[BaseModel]) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "literal_error":
        choices = [part.strip("' ") for part in context["expected"].replace(" or ", ",").split(",")]
        near = difflib.get_close_matches(str(problem["input"]), choices, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"must be one of {context['expected'].replace(' or ', ', ')}{hint}"
    if kind == "string_pattern_mismatch":
        return f"must match {context['pattern']}; use letters, digits, `_`, `.` and `-`, at most 64"
    if kind.startswith("model"):
        return "is a section, not a value; set its keys, as in section.key=value"
    if kind in _BOUNDS:
        words, bound, step = _BOUNDS[kind]
        said = f"{words} {context[bound]}; {step}"
    else:
        said = next((words for name, words in _KINDS.items() if kind.startswith(name)), "")
        said = said or f"{problem['msg'][0].lower()}{problem['msg'][1:]}"
    value: Any = PydanticUndefined
    inner: Any = model
    for part in key:  # for a list's entry, the nearest default is the list's
        field = getattr(inner, "model_fields", {}).get(part)
        if field is not None:
            value, inner = field.get_default(call_default_factory=True), field.annotation
    return said if value is PydanticUndefined else f"{said} (default {_shown(value)})"


def _unknown(key: Sequence[str], model: type[BaseModel], prefix: str) -> str:
    """Suggest the setting nearest to an unknown key, here or in another section."""
    last, around = key[-1].lower(), dotted(key[:-1])
    aliases = ALIASES if model is RunConfig else {}
    alias = aliases.get(last, "")
    in_section = alias if alias.startswith(f"{key[0]}.") else ""
    if meant := aliases.get(dotted(key).lower(), in_section):
        return f"no such setting; did you mean {meant}?"
    section = model_of(model, key[:-1])
    if section is None:
        return f"{prefix}{around} is a value, not a section"
    inside = f"{prefix}{around}." if around else prefix
    found = [f"{inside}{near}" for near in difflib.get_close_matches(last, section.model_fields, n=1)]
    if not found:
        every = {name: model_of(model, (name,)) for name in model.model_fields}
        found = [
            f"{prefix}{name}" if inner is None else f"{prefix}{name}.{last}"
            for name, inner in every.items()
            if (last == name and inner is None) or (inner is not None and last in inner.model_fields)
        ]
    if found:
        return f"no such setting; did you mean {' or '.join(found)}?"
    where = f"section {inside[:-1]}" if inside else "the top level"
    return f"no such setting; {where} has {', '.join(section.model_fields) or 'none'}"


def _shown(value: object) -> str:
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
