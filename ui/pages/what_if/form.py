"""The form of the page What if: five questions, the rest folded, all of it in the page's address."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
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
    """Show the form; return its question, and True if the button was pressed.

    A field that is left empty has the value that it shows in grey: the preset's, or the command's.

    Raises:
        ConfigurationError: the address names something that is not here, or the settings are wrong.
    """
    presets, traces = [preset.name for preset in list_presets()], trace_names()
    _refuse_unknown({"preset": presets, "profile": profiles, "spot_profile": profiles, "trace": traces})
    preset = st.selectbox(
        "Which model? (preset)", presets, presets.index(_PRESET), key="preset", bind="query-params",
        help="The workload: samples, batches, denoising steps, evaluations, exploration.",
    )  # fmt: skip
    config = load_config(preset, [], os.environ)
    runtime, price = config.runtime, config.price
    reserved = _RESERVED if runtime.reserved_workers == AUTO else runtime.reserved_workers
    spot = _SPOT if runtime.spot_workers == AUTO else runtime.spot_workers
    trainers = runtime.trainer_workers if "trainer_workers" in runtime.model_fields_set else "all that can"
    with st.form("what_if_form"):
        row = st.columns([2, 1, 1, 1])
        _choice(
            row[0], "profile", "Which GPUs?", profiles, "as measured, else H100",
            "A kind of GPU, a profile, or a recorded run, whose times are taken.",
        )  # fmt: skip
        _number(row[1], "reserved", "Reserved devices", reserved, step=1)
        _number(
            row[2], "reserved_usd", "Reserved, $ an hour",
            _usd(price.reserved_usd_per_hour, st.session_state["profile"]), "Of a device.",
        )  # fmt: skip
        _number(
            row[3], "hours", "Goal: finish within (hours)", "least dollars",
            "Finds the fewest spot devices, without exploration, with which the median ends in time.",
            min_value=0.01,
        )  # fmt: skip
        row = st.columns(5, vertical_alignment="bottom")
        with_spot = row[0].toggle("Spot devices too?", value=True, key="with_spot", bind="query-params")
        _choice(
            row[1], "spot_profile", "Spot GPUs", profiles, "the same", "Give both prices for another kind."
        )
        _number(row[2], "spot", "Spot devices", spot, step=1)
        _number(row[3], "loss_rate", "Losses of a device an hour", 0.67, "Of drawn traces.")
        kind = st.session_state["spot_profile"] or st.session_state["profile"]
        _number(row[4], "spot_usd", "Spot, $ an hour", _usd(price.spot_usd_per_hour, kind), "Of a device.")
        with st.expander("More"):
            _show_more(traces, trainers, config.iterations)
        pressed = st.form_submit_button("Simulate", type="primary", icon=":material/calculate:")
    given = {field.name: _read(field.name) for field in fields(Question)}
    if given["reserved"] is None:
        given["reserved"] = reserved
    if not with_spot:
        given |= {"spot": 0, "spot_profile": "", "spot_usd": given["reserved_usd"]}
    elif given["spot"] is None and given["hours"] is None:
        given["spot"] = spot
    return Question(**given), pressed


def _usd(usd_per_hour: float, gpu: str) -> str:
    """Return the price of an empty field: the settings', or that of a GPU, which the command looks up."""
    return "the GPU's" if gpu in GPUS and gpu != "H100" else f"{usd_per_hour:g}"


def _refuse_unknown(known: dict[str, Sequence[str]]) -> None:
    """Refuse an address that names something that is not here; Streamlit would take the default for it."""
    for name, names in known.items():
        value = st.query_params.get(name)
        if value is not None and value not in names:
            raise ConfigurationError(
                f"{name}={quoted(value)} in the page's address is not here; take it out, and choose another"
            )


def _show_more(traces: Sequence[str], trainers: object, iterations: int) -> None:
    """Show the rarely used fields.

    Args:
        traces: names of recorded traces.
        trainers, iterations: values of these fields if they are left empty.
    """
    row = st.columns(4)
    _number(row[0], "trainers", "Trainers", trainers, "Reserved devices that train.", step=1, min_value=1)
    _number(row[1], "iterations", "Iterations", iterations, step=1)
    _choice(
        row[2], "degree", "Devices that share a sample", ["1", "2", "4", "8", "auto"], "the settings'",
        "In rollouts and evaluations. Above 1 one device trains, as in a live run.",
    )  # fmt: skip
    _number(
        row[3], "per_instance", "Devices of an instance", "all on one machine",
        "They may share samples, and are lost together.", step=1, min_value=1, max_value=64,
    )  # fmt: skip
    row = st.columns(5)
    _choice(
        row[0], "trace", "Trace of spot instances", traces, "drawn, by rate and share",
        "A recorded trace already says which instances go: leave rate and share empty.",
    )  # fmt: skip
    _number(
        row[1], "joint", "Share of joint losses", 0.77,
        "Of drawn traces: losses that take several devices at once, from 0 to 1.",
    )  # fmt: skip
    _number(row[2], "notice_s", "Notice before a loss (s)", 0, format="%g")
    _number(
        row[3], "futures", "Futures", 5,
        "Windows of the trace, each with a draw of the profile within its uncertainty.",
        step=1, min_value=1, max_value=200,
    )  # fmt: skip
    _number(row[4], "seed", "Random seed", 0, "Of the futures.", step=1, min_value=0)
    files, words = st.columns(2)
    files.caption("Files are not in the page's address.")
    upload = partial(files.file_uploader, type="csv", max_upload_size=_MOST_MIB)
    upload(
        "Trace (CSV)", key="own_trace",
        help="Of spot instances, in place of the one above: lines of milliseconds, add or remove, and the "
        "instance's name.",
    )  # fmt: skip
    upload(
        "Prices (CSV)", key="prices",
        help="Prices over time: time, market (on_demand or spot), usd_per_hour, and perhaps zone.",
    )  # fmt: skip
    write = partial(words.text_input, bind="query-params")
    write("Zone", key="zone", placeholder="the file's only one", help="Whose prices are taken.")
    write(
        "Serving fleet", key="serving", placeholder="0.5,0.3,2",
        help="Adds the policy lending: the share of its devices that are busy, half of its "
        "swing over a day, and the seconds that a request can wait.",
    )  # fmt: skip


def _choice(
    place: DeltaGenerator, name: str, label: str, options: Sequence[str], default: str, about: str
) -> None:
    """Show a list whose first option, the default, is left to the command."""
    place.selectbox(
        label, ["", *options], format_func=lambda option: option or default, key=name, bind="query-params",
        help=about,
    )  # fmt: skip


def _number(
    place: DeltaGenerator, name: str, label: str, default: object, about: str | None = None, **more: Any
) -> None:
    """Show a field that may be left empty; whole numbers have a `step` of 1."""
    place.number_input(
        label, value=None, placeholder=str(default), key=name, bind="query-params", help=about, **more
    )


def _read(name: str) -> Any:
    """Return the value of a field as a question has it."""
    value = st.session_state[name]
    if isinstance(value, str):
        return value.strip()
    return value.getvalue() if hasattr(value, "getvalue") else value
