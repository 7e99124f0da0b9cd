"""The page What if: five questions, also in the address, the answer in a sentence, and its details."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from storage.config.loading import PRESETS, list_presets, load_config
from storage.config.runtime import AUTO
from storage.errors import ConfigurationError, SpotlightError, StorageError, quoted
from storage.home import Home
from ui.charts.cost import market_bars
from ui.charts.devices import gantt_chart, utilisation_charts
from ui.data.run import load_overview
from ui.elements.formatting import SIMULATED, SIMULATED_BADGE, markdown_text, plain_markdown
from ui.elements.widgets import PLOT_SETTINGS, offer_downloads, show_in_pairs, show_rows, show_tiles
from ui.pages.what_if import data
from ui.pages.what_if.question import GPUS, OnStep, Question, ask, trace_names

_PRESET = "qwen-image-geneval-512"
_RESERVED, _SPOT = 4, 8  # if the preset leaves the numbers to the cluster
_MOST_MIB = 16  # of a visitor's file
_KEPT = "what_if"  # in the session, which keeps the answer while another page is open
_LINK = "simulate"  # in the address of an answer
_SHOWN_ITERATIONS = 3


def _show() -> None:
    st.header(f"What if {SIMULATED_BADGE}", anchor=False)
    st.caption(
        "The time and cost of a run on a fleet, by policy, before anything is rented. Every figure on this "
        "page is simulated; `spotlight what-if` gives the same. The page's address keeps your values."
    )
    home = Home.from_environment()
    try:
        question, pressed = _show_form(home)
        # A link to an answer shows it at once in a new session.
        if pressed or (_LINK in st.query_params and _KEPT not in st.session_state):
            st.session_state[_KEPT] = None
            st.query_params.pop(_LINK, None)
            if question.own_trace is None and question.own_prices is None:  # no address holds files
                st.query_params[_LINK] = "1"
            with _bar() as on_step:
                answer, trace = ask(question, home, on_step)
            best = next((row["policy"] for row in answer.get("policies", ()) if row["best"]), "")
            line = data.read_time_line(best, trace) if trace else None
            st.session_state[_KEPT] = data.Asked(question, answer, line)
    except SpotlightError as error:
        st.error(plain_markdown(str(error)), icon=":material/block:")
        return
    asked: data.Asked | None = st.session_state.get(_KEPT)
    if asked is None:
        st.info("Press Simulate; the answer takes a few seconds.", icon=":material/calculate:")
        return
    _show_answer(asked, home)


@contextmanager
def _bar() -> Iterator[OnStep]:
    bar = st.progress(0.0, "Starting the simulator …")

    def on_step(done: int, runs: int) -> None:
        bar.progress(done / runs, f"Simulating: run {done} of {runs}")

    try:
        yield on_step
    finally:
        bar.empty()


def _show_answer(asked: data.Asked, home: Home) -> None:
    st.success(markdown_text(asked.answer["answer"]), icon=":material/star:")
    if counted := asked.answer.get("counted_in_words"):
        st.warning(markdown_text(counted), icon=":material/straighten:")
    if asked.line is None:
        with st.expander("Numbers of spot devices tried"):
            tried = [
                (row["spot"], data.in_words(row, "wall_s"), data.in_words(row, "usd"))
                for row in asked.answer["goal"]["tried"]
            ]
            show_rows(["spot devices", "time", "dollars"], tried)
            st.caption("Medians, with the lowest and highest of the futures in parentheses.")
    else:
        with st.expander("Policies compared"):
            _show_policies(asked)
        with st.expander("Time line and ledger of a run"):
            _show_time_line(asked, asked.line, home)
    with st.expander("Assumptions"):
        lines = [f"preset {asked.question.preset}", *asked.answer["basis"]]
        st.markdown("\n".join(f"- {plain_markdown(line.strip())}" for line in lines))
    if asked.line is not None:
        offer_downloads("what-if", {
            "policies": data.policy_figures(asked), "milestones": data.milestone_figures(asked),
            f"run of {asked.line.policy}": asked.line.by_state(),
        })  # fmt: skip


def _show_policies(asked: data.Asked) -> None:
    show_tiles(
        *(
            (
                heading.capitalize(), written(asked.best[name]["median"]),
                f"{written(asked.best[name]['low'])} to {written(asked.best[name]['high'])}",
                f"Median of {asked.best['policy']}; below, the lowest and highest of the futures.",
            )
            for name, (heading, written) in data.FIGURES.items() if name in asked.best
        )
    )  # fmt: skip
    st.dataframe(data.policy_table(asked), hide_index=True)
    st.caption(
        markdown_text(
            f"Medians, with the lowest and highest of {asked.answer['futures']} futures in parentheses; the "
            "futures are the same for all policies; × compares with the best. ★ is the cheapest that a live "
            "run can follow or, within 1 % of it, the one with the most drafts. All do the same iterations, "
            "so the table does not show what exploration contributes to learning."
        )
    )
    table = data.milestone_table(asked)
    if not table.empty:
        st.subheader("To a score")
        st.dataframe(table, hide_index=True)
        curves, other = asked.answer["curves"]["name"], asked.answer["other_learner"]
        st.caption(
            markdown_text(
                "Time and dollars to a share of the baseline's progress: the futures' median iteration time "
                f"× the median iterations of the curves {curves}{other and f' ({other})'}, without startup "
                "and evaluations. Learning: lowest and highest run seed relative to the median, to the last "
                "score; system: the same over the futures. ≥ means some run seeds did not get there."
            )
        )
    for sentence in asked.answer.get("conclusions", ()):
        st.markdown(markdown_text(sentence))
    st.plotly_chart(data.policy_chart(asked.policies), key="what-if-policies", config=PLOT_SETTINGS)


def _show_time_line(asked: data.Asked, line: data.TimeLine, home: Home) -> None:
    names = [row["policy"] for row in asked.policies]
    chosen = st.selectbox("Policy", names, index=names.index(line.policy)) or line.policy
    if chosen != line.policy:
        try:
            with _bar() as on_step:
                line = asked.line = data.read_time_line(chosen, ask(asked.question, home, on_step, chosen)[1])
        except SpotlightError as error:
            st.error(plain_markdown(str(error)), icon=":material/block:")
            return
    last = len(line.ends)
    first, last = st.slider("Iterations", 0, last, (1, min(_SHOWN_ITERATIONS, last)))
    course = line.course(first, last)
    drawn = data.marked(gantt_chart(course, line.ends, SIMULATED))
    st.plotly_chart(drawn, key="what-if-gantt", config=PLOT_SETTINGS)
    shown, of = len(course.intervals), max(course.intervals["of"].tolist(), default=0)
    few = f" The latest {shown:,} of {of:,} intervals; choose fewer iterations." if shown < of else ""
    st.caption(f"The run of {line.policy} in the first future. 0 is the evaluation before training.{few}")
    st.download_button(
        "Chrome trace (JSON)", data=lambda: line.text, file_name=f"what-if-{line.policy}.json",
        mime="application/json", icon=":material/download:", on_click="ignore",
        help="The whole run, for ui.perfetto.dev or chrome://tracing.",
    )  # fmt: skip
    st.subheader("Ledger of the run")
    spent = line.by_state()
    show_in_pairs([data.marked(chart) for chart in utilisation_charts(line.utilisation())], "what-if-use")
    chart = data.marked(market_bars(spent, "state", "Paid time", modelled=False))
    st.plotly_chart(chart, key="what-if-states", config=PLOT_SETTINGS)


def _show_form(home: Home) -> tuple[Question, bool]:
    """Show the form; return its question, with grey values for empty fields, and True if submitted.

    Raises:
        ConfigurationError: the address names something that does not exist here, or settings are wrong.
    """
    presets, traces = [preset.name for preset in list_presets()], trace_names()
    profiles = [*GPUS, *sorted(path.stem for path in (PRESETS / "profiles").glob("*.json"))]
    with suppress(StorageError):
        profiles += load_overview(home)["run_id"].tolist()  # recorded runs, newest first
    known = {"preset": presets, "profile": profiles, "spot_profile": profiles, "trace": traces}
    for name, names in known.items():  # Streamlit would replace an unknown one by the default
        value = st.query_params.get(name)
        if value is not None and value not in names:
            raise ConfigurationError(
                f"{name}={quoted(value)} in the page's address does not exist here; remove it, choose another"
            )
    preset = st.selectbox(
        "Which model? (preset)", presets, presets.index(_PRESET), key="preset", bind="query-params",
        help="The workload: samples, batches, denoising steps, evaluations, exploration.",
    )  # fmt: skip
    config = load_config(preset, [], os.environ)
    runtime, price = config.runtime, config.price
    reserved = _RESERVED if runtime.reserved_workers == AUTO else runtime.reserved_workers
    spot = _SPOT if runtime.spot_workers == AUTO else runtime.spot_workers
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
            _show_more(given, traces, runtime.trainer_workers, config.iterations)
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
    """Return an empty field's price: the settings', or a GPU's, which the command looks up."""
    return "the GPU's" if gpu in GPUS and gpu != "H100" else f"{usd_per_hour:g}"


def _show_more(given: dict[str, Any], traces: Sequence[str], trainers: int, iterations: int) -> None:
    row = st.columns(4)
    _ask(given, row[0], "trainers", trainers)
    _ask(given, row[1], "iterations", iterations)
    _ask(given, row[2], "degree", "the settings'", ["1", "2", "4", "8", "auto"])
    _ask(given, row[3], "per_instance", "all on one machine")
    row = st.columns(5)
    _ask(given, row[0], "trace", "generated from rate and share", traces)
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

    `grey` is the value of an empty field, by default the field's default; `choices` make it a list.
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


_show()
