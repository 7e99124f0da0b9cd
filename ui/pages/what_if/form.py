"""The form of the page What if: five questions, the rest folded, all of it in the page's address."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from storage.config.loading import list_presets, load_config
from storage.config.runtime import AUTO
from storage.errors import ConfigurationError, quoted
from ui.pages.what_if.question import GPUS, Question, trace_names

_PRESET = "qwen-image-geneval-512"
_RESERVED, _SPOT = 4, 8  # where the preset leaves the numbers to the cluster
_MOST_MIB = 16  # of a visitor's file


def show_form(profiles: Sequence[str]) -> tuple[Question, bool]:
    """Show the form; return its question, with grey values for empty fields, and True if it was sent.

    Raises:
        ConfigurationError: the address names something that is not here, or the settings are wrong.
    """
    presets, traces = [preset.name for preset in list_presets()], trace_names()
    known = {"preset": presets, "profile": profiles, "spot_profile": profiles, "trace": traces}
    for name, names in known.items():  # Streamlit would take the default for an unknown one
        value = st.query_params.get(name)
        if value is not None and value not in names:
            raise ConfigurationError(
                f"{name}={quoted(value)} in the page's address is not here; take it out, and choose another"
            )
    preset = st.selectbox(
        "Which model? (preset)", presets, presets.index(_PRESET), key="preset", bind="query-params",
        help="The workload: samples, batches, denoising steps, evaluations, exploration.",
    )  # fmt: skip
    config = load_config(preset, [], os.environ)
    runtime, price = config.runtime, config.price
    reserved = _RESERVED if runtime.reserved_workers == AUTO else runtime.reserved_workers
    spot = _SPOT if runtime.spot_workers == AUTO else runtime.spot_workers
    trainers = runtime.trainer_workers if "trainer_workers" in runtime.model_fields_set else "all that can"
    given: dict[str, Any] = {"preset": preset}
    with st.form("what_if_form"):
        row = st.columns([2, 1, 1, 1])
        _ask(given, row[0], "profile", "as measured, else H100", profiles)
        _ask(given, row[1], "reserved", reserved)
        _ask(given, row[2], "reserved_usd", _usd(price.reserved_usd_per_hour, given["profile"]))
        _ask(given, row[3], "hours", "least dollars")
        row = st.columns(5, vertical_alignment="bottom")
        with_spot = row[0].toggle("Spot devices too?", value=True, key="with_spot", bind="query-params")
        _ask(given, row[1], "spot_profile", "the same", profiles)
        _ask(given, row[2], "spot", spot)
        _ask(given, row[3], "loss_rate")
        kind = given["spot_profile"] or given["profile"]
        _ask(given, row[4], "spot_usd", _usd(price.spot_usd_per_hour, kind))
        with st.expander("More"):
            _show_more(given, traces, trainers, config.iterations)
        pressed = st.form_submit_button("Simulate", type="primary", icon=":material/calculate:")
    given["reserved"] = reserved if given["reserved"] is None else given["reserved"]
    if not with_spot:
        given |= {"spot": 0, "spot_profile": "", "spot_usd": given["reserved_usd"]}
    elif given["spot"] is None and given["hours"] is None:
        given["spot"] = spot
    return Question.checked(
        {name: value for name, value in given.items() if value not in ("", None)}
    ), pressed


def _usd(usd_per_hour: float, gpu: str) -> str:
    """Return the price of an empty field: the settings', or that of a GPU, which the command looks up."""
    return "the GPU's" if gpu in GPUS and gpu != "H100" else f"{usd_per_hour:g}"


def _show_more(given: dict[str, Any], traces: Sequence[str], trainers: object, iterations: int) -> None:
    row = st.columns(4)
    _ask(given, row[0], "trainers", trainers)
    _ask(given, row[1], "iterations", iterations)
    _ask(given, row[2], "degree", "the settings'", ["1", "2", "4", "8", "auto"])
    _ask(given, row[3], "per_instance", "all on one machine")
    row = st.columns(5)
    _ask(given, row[0], "trace", "drawn, by rate and share", traces)
    for place, name in zip(row[1:], ("joint", "notice", "windows", "seed"), strict=True):
        _ask(given, place, name)
    files, words = st.columns(2)
    files.caption("Files are not in the page's address.")
    for name in ("own_trace", "own_prices"):
        field = Question.model_fields[name]
        file = files.file_uploader(
            str(field.title), type="csv", max_upload_size=_MOST_MIB, key=name, help=field.description
        )
        given[name] = None if file is None else file.getvalue()
    _ask(given, words, "zone", "the file's only one")
    _ask(given, words, "serving", "0.5,0.3,2")


def _ask(
    given: dict[str, Any], place: DeltaGenerator, name: str, grey: object = None,
    choices: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Show a field with the label, help and bounds of its declaration in `Question`, and note its value.

    `grey` is what an empty field stands for, by default the field's default; `choices` make it a list.
    """
    field = Question.model_fields[name]
    shown = str(field.default if grey is None else grey)
    about: dict[str, Any] = {"key": name, "bind": "query-params", "help": field.description}
    if choices is not None:
        given[name] = place.selectbox(
            str(field.title), ["", *choices], format_func=lambda option: option or shown, **about
        )
    elif field.annotation is str:
        given[name] = (place.text_input(str(field.title), placeholder=shown, **about) or "").strip()
    else:
        kind = int if field.annotation is int else float
        low, high = (None if bound is None else kind(bound) for bound in Question.bounds(name))
        step = {"step": 1} if kind is int else {"format": "%g"}
        given[name] = place.number_input(
            str(field.title), value=None, placeholder=shown, min_value=low, max_value=high, **step, **about
        )
