"""The form of the page What if."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from storage.config.loading import list_presets
from ui.pages.what_if.question import Question, trace_names

_PRESET = "qwen-image-geneval-512"
_DRAWN = "drawn, by rate and share"
_MOST_MIB = 16  # of a visitor's file
_OWN = "that of the preset's model and size"
_SAME = "the same kind of device"


def show_form(profiles: Sequence[str]) -> Question | None:
    """Show the form; return the question if the button was pressed, else None.

    Args:
        profiles: names of profiles and of recorded runs.
    """
    presets = [preset.name for preset in list_presets()]
    with st.form("what_if_form"):
        workload, profile, spot, trace = st.columns(4)
        preset = workload.selectbox(
            "Preset", presets, index=presets.index(_PRESET) if _PRESET in presets else 0,
            help="The workload: samples, batches, denoising steps, evaluations, exploration.",
        )  # fmt: skip
        chosen_profile = profile.selectbox(
            "Profile",
            [_OWN, *profiles],
            help="What each part of the workload takes, or a recorded run's times.",
        )
        chosen_spot = spot.selectbox(
            "Profile of spot devices", [_SAME, *profiles], help="Where they are of another kind of device."
        )
        chosen_trace = trace.selectbox(
            "Trace of spot instances", [_DRAWN, *trace_names()],
            help="A recorded one says itself which instances go: leave rate and share empty then.",
        )  # fmt: skip
        numbers = _numbers()
        own = _own_files()
        asked = st.form_submit_button("Simulate", type="primary", icon=":material/calculate:")
    if not asked:
        return None
    return Question(
        preset=preset or _PRESET,
        profile="" if chosen_profile == _OWN else chosen_profile or "",
        spot_profile="" if chosen_spot == _SAME else chosen_spot or "",
        trace="" if chosen_trace == _DRAWN else chosen_trace or "",
        **numbers,
        **own,
    )


def _numbers() -> dict[str, Any]:
    """Return the numbers of a question by their names; None if one is left to the command."""
    row = st.columns(4)
    devices = {
        "reserved": row[0].number_input("Reserved devices", value=4),
        "spot": row[1].number_input("Spot devices", value=8),
        "trainers": row[2].number_input(
            "Trainers",
            value=None,
            min_value=1,
            placeholder="all reserved",
            help="Reserved devices that train.",
        ),
        "iterations": row[3].number_input("Iterations", value=200),
    }
    row = st.columns(4)
    prices = {
        "reserved_usd": row[0].number_input(
            "Reserved, $ an hour", value=None, placeholder="the settings'", help="Of a device."
        ),
        "spot_usd": row[1].number_input(
            "Spot, $ an hour", value=None, placeholder="the settings'", help="Of a device."
        ),
        "loss_rate": row[2].number_input(
            "Losses of a device an hour", value=None, placeholder="0.67", help="Of drawn traces."
        ),
        "joint": row[3].number_input(
            "Share of joint losses", value=None, placeholder="0.77",
            help="Of drawn traces: losses that take several devices at once, from 0 to 1.",
        ),
    }  # fmt: skip
    row = st.columns(5)
    return {
        **devices,
        **prices,
        "notice_s": row[0].number_input("Notice before a loss (s)", value=0.0, format="%g"),
        "futures": row[1].number_input(
            "Futures", value=5, min_value=1, max_value=200,
            help="Windows of the trace, each with a draw of the profile within its uncertainty.",
        ),
        "seed": row[2].number_input("Random seed", value=0, min_value=0, help="Of the futures."),
        "degree": row[3].selectbox(
            "Devices that share a sample", ["the settings'", "1", "2", "4", "8", "auto"],
            help="In rollouts and evaluations. Above 1 one device trains, as in a live run.",
        ).replace("the settings'", ""),
        "per_instance": row[4].number_input(
            "Devices of an instance", value=None, min_value=1, max_value=64, placeholder="all on one machine",
            help="They may share samples, and are lost together.",
        ),
    }  # fmt: skip


def _own_files() -> dict[str, Any]:
    """Return the rarely used inputs by the names of a question: own traces and prices, a serving fleet."""
    with st.expander("A trace and prices of your own, a serving fleet"):
        files, words = st.columns(2)
        trace = files.file_uploader(
            "Trace (CSV)", type="csv", max_upload_size=_MOST_MIB,
            help="Of spot instances, in place of the one above: lines of milliseconds, add or remove, and "
            "the instance's name.",
        )  # fmt: skip
        prices = files.file_uploader(
            "Prices (CSV)", type="csv", max_upload_size=_MOST_MIB,
            help="That change with time: time, market (on_demand or spot), usd_per_hour, and perhaps zone.",
        )  # fmt: skip
        zone = words.text_input("Zone", placeholder="the file's only one", help="Whose prices are taken.")
        serving = words.text_input(
            "Serving fleet", placeholder="0.5,0.3,2",
            help="The policy lending is compared then: the share of its devices that are busy, half of its "
            "swing over a day, and the seconds that a request can wait.",
        )  # fmt: skip
    return {
        "own_trace": trace and trace.getvalue(),
        "prices": prices and prices.getvalue(),
        "zone": (zone or "").strip(),
        "serving": (serving or "").strip(),
    }
