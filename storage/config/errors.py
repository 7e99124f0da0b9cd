"""Validation errors in words: the setting, its value, the limit, the next step; one line each."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticUndefined

from storage.config.run_config import RunConfig

ALIASES = {
    "lr": "optimizer.learning_rate",
    "learning_rate": "optimizer.learning_rate",
    "warmup": "optimizer.warmup_steps",
    "epochs": "iterations",
    "num_epochs": "iterations",
    "max_steps": "iterations",
    "steps": "sampling.rollout_steps",
    "num_steps": "sampling.rollout_steps",
    "num_inference_steps": "sampling.rollout_steps",
    "guidance_scale": "model.guidance",
    "cfg": "model.guidance",
    "resolution": "model.height",
    "batch_size": "sampling.batch_size",
    "num_generations": "algorithm.group_size",
    "beta": "algorithm.kl_weight",
    "kl_coef": "algorithm.kl_weight",
    "kl": "algorithm.kl_weight",
    "clip_range": "algorithm.options.clip_range",
    "algorithm.name": "algorithm.objective",
    "algorithm.algorithm": "algorithm.objective",
    "algo": "algorithm.objective",
    "loss": "algorithm.objective",
    "lora_rank": "adaptation.rank",
    "lora.rank": "adaptation.rank",
    "lora": "adaptation.mode",
    "reward.name": "reward.scorer",
    "reward_fn": "reward.scorer",
    "model.name": "model.path",
    "pretrained_model": "model.path",
    "wandb": "tracking.to",
    "report_to": "tracking.to",
    "logger": "tracking.to",
    "gpus": "runtime.reserved_workers",
    "num_gpus": "runtime.reserved_workers",
    "save_every": "checkpoint.every",
    "save_freq": "checkpoint.every",
    "eval_every": "evaluation.every",
    "eval_freq": "evaluation.every",
    "notify": "tracking.to",
    "slack": "tracking.to",
    "webhook": "tracking.to",
    "max_hours": "budget.hours",
    "max_cost": "budget.usd",
}
"""Names that users of other trainers type, and the setting that each of them means."""

KeyPath = tuple[str, ...]
"""Where a setting is: ("sampling", "noise_level")."""

_SOURCES: ContextVar[Mapping[KeyPath, str]] = ContextVar("sources of the settings")

GIVEN_BY: ContextVar[str] = ContextVar("option or argument that gives settings", default="--set")
"""The source of a setting that a person gives: `--set`, or an argument of Python's."""

_BOUNDS = {
    "greater_than": ("must be above", "gt", "raise it"),
    "greater_than_equal": ("must be at least", "ge", "raise it"),
    "less_than": ("must be below", "lt", "lower it"),
    "less_than_equal": ("must be at most", "le", "lower it"),
}

_KINDS = {"finite_number": "must be finite", "int": "must be a whole number",
          "float": "must be a number", "string": "must be text",
          "bool": "must be true or false", "tuple": 'must be a list, as in ["a", "b"]',
          "model": "is a section, not a value; set its keys, as in section.key=value"}  # fmt: skip


def dotted(key: Sequence[str | int]) -> str:
    """The name of a setting as a person writes it: `sampling.noise_level`."""
    return ".".join(map(str, key))


@contextmanager
def naming_sources(sources: Mapping[KeyPath, str]) -> Iterator[None]:
    """Let every refusal inside the block say where the value came from, by setting (a preset, --set).

    A context and no argument: plug-ins are found and their options read in several registries, which have no
    other use for the sources.
    """
    token = _SOURCES.set(sources)
    try:
        yield
    finally:
        _SOURCES.reset(token)


def origin_of(setting: str) -> str:
    """` (from --set)`, where the source of a setting's value is known; else empty."""
    source = _SOURCES.get({}).get(tuple(setting.split(".")), "")
    return f" (from {source})" if source else ""


def as_given(settings: Mapping[str, str]) -> str:
    """Return the text that gives settings: a `--set` each, or the argument of Python's functions."""
    if (source := GIVEN_BY.get()) == "--set":
        return " ".join(f"{source} {name}={value}" for name, value in settings.items())
    return f"{source}={json.dumps(settings)}"


def explain(error: ValidationError, model: type[BaseModel] = RunConfig, section: str = "") -> list[str]:
    """One line for each problem of a configuration, with its source (`naming_sources`).

    Args:
        section: where it stands among the settings, as in `reward.options`; empty for all of them.
    """
    place, sources = _Place(model, section), _SOURCES.get({})
    if section:  # by the dotted name: that of a sum's part may have dots itself
        start = f"{section}."
        sources = {
            tuple(name.removeprefix(start).split(".")): source
            for key, source in sources.items()
            if (name := dotted(key)).startswith(start)
        }
    return [_line(problem, sources, place) for problem in error.errors(include_url=False)]


@dataclass(frozen=True)
class _Place:
    """The model that was validated, and where it stands among the settings."""

    model: type[BaseModel]
    section: str

    def name(self, key: KeyPath) -> str:
        return dotted((self.section, *key) if self.section else key)

    def fields(self, section: KeyPath) -> list[str] | None:
        """Names of a section's settings; None where there is no such section."""
        model: Any = self.model
        for part in section:
            if part not in model.model_fields:
                return None
            model = model.model_fields[part].annotation
            if not (isinstance(model, type) and issubclass(model, BaseModel)):
                return None
        return list(model.model_fields)

    def all(self) -> list[KeyPath]:
        paths: list[KeyPath] = []
        for name in self.model.model_fields:
            inner = self.fields((name,))
            paths += [(name,)] if inner is None else [(name, key) for key in inner]
        return paths

    def default(self, key: KeyPath) -> str:
        """` (default 4)`; empty where a setting has none."""
        model: Any = self.model
        value: Any = PydanticUndefined
        for part in key:
            fields = getattr(model, "model_fields", {})
            if part not in fields:
                break  # an entry of a list: the list's default is as near as there is
            value, model = fields[part].get_default(call_default_factory=True), fields[part].annotation
        return "" if value is PydanticUndefined else f" (default {_shown(value)})"


def _line(problem: ErrorDetails, sources: Mapping[KeyPath, str], place: _Place) -> str:
    key = tuple(map(str, problem["loc"]))
    if problem["type"] == "value_error":  # a check of ours: its text names settings and values itself
        return problem["msg"].removeprefix("Value error, ")
    # The value may have come for this key, for a section around it, or for keys inside it.
    related = (source for k, source in sources.items() if k[: len(key)] == key[: len(k)])
    origin = f" (from {source})" if (source := next(related, "")) else ""
    if problem["type"] == "extra_forbidden":
        return f"{place.name(key)}{origin}: {_unknown(key, place)}"
    if problem["type"] == "missing":
        return f"{place.name(key)} has no value; set {place.name(key)}=..."
    return f"{place.name(key)} = {_shown(problem['input'])}{origin}: {_reason(problem, key, place)}"


def _reason(problem: ErrorDetails, key: KeyPath, place: _Place) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    default = place.default(key)
    if kind in _BOUNDS:
        words, bound, step = _BOUNDS[kind]
        return f"{words} {context[bound]}; {step}{default}"
    if kind == "literal_error":
        choices = [part.strip("' ") for part in context["expected"].replace(" or ", ",").split(",")]
        near = difflib.get_close_matches(str(problem["input"]), choices, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"must be one of {context['expected'].replace(' or ', ', ')}{hint}"
    if kind == "string_too_short":
        return f"must not be empty{default}"
    if kind == "string_pattern_mismatch":
        return f"must match {context['pattern']}; use letters, digits, `_`, `.` and `-`, at most 64"
    for name, words in _KINDS.items():
        if kind.startswith(name):
            return words if name == "model" else f"{words}{default}"
    return f"{problem['msg'][0].lower()}{problem['msg'][1:]}{default}"


def _unknown(key: KeyPath, place: _Place) -> str:
    """Name the setting nearest to a key that is none, here or in another section."""
    fields = place.fields(key[:-1])
    last = ALIASES.get(key[-1].lower(), "")
    in_section = last if len(key) == 1 or last.startswith(f"{key[0]}.") else ""
    if not place.section and (meant := ALIASES.get(dotted(key).lower(), in_section)):
        return f"no such setting; did you mean {meant}?"
    if fields is None:
        return f"{place.name(key[:-1])} is a value, not a section"
    near = difflib.get_close_matches(key[-1].lower(), fields, n=1)
    if near:
        return f"no such setting; did you mean {place.name((*key[:-1], near[0]))}?"
    elsewhere = [path for path in place.all() if path[-1] == key[-1].lower()]
    if elsewhere:
        return f"no such setting; did you mean {' or '.join(map(place.name, elsewhere))}?"
    around = place.name(key[:-1])
    where = f"section {around}" if around else "the top level"
    return f"no such setting; {where} has {', '.join(fields) or 'none'}"


def _shown(value: object) -> str:
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
