"""The page What if: five questions, the answer in a sentence, and all that is behind it, folded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import streamlit as st

from storage.config.loading import PRESETS
from storage.errors import SpotlightError, StorageError
from storage.home import Home
from ui.charts.cost import market_bars
from ui.charts.devices import gantt_chart, utilisation_charts
from ui.data.run import load_overview
from ui.elements.formatting import SIMULATED, SIMULATED_BADGE, markdown_text, plain_markdown
from ui.elements.widgets import PLOT_SETTINGS, offer_downloads, show_in_pairs, show_tiles
from ui.pages.what_if import data
from ui.pages.what_if.form import show_form
from ui.pages.what_if.question import GPUS, OnStep, ask

_KEPT = "what_if"  # in the session, which keeps the answer while another page is open
_LINK = "simulate"  # in the address of an answer
_SHOWN_ITERATIONS = 3


def _show() -> None:
    st.header(f"What if {SIMULATED_BADGE}", anchor=False)
    st.caption(
        "What a run would take and cost on a fleet, by policy, before anything is rented. Every figure on "
        "this page is simulated; `spotlight what-if` gives the same. A link to the page keeps your values."
    )
    home = Home.from_environment().path
    try:
        question, pressed = show_form(_profiles(home))
        # A link to an answer gives it at once, in a new session.
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
        st.info("Press Simulate; an answer takes some seconds.", icon=":material/calculate:")
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


def _profiles(home: Path) -> list[str]:
    """Return GPUs, the profiles that ship with the project, then recorded runs, the newest first."""
    carried = [*GPUS, *sorted(path.stem for path in (PRESETS / "profiles").glob("*.json"))]
    try:
        overview = load_overview(home)
    except StorageError:
        return carried
    return [*carried, *overview["run_id"].tolist()] if not overview.empty else carried


def _show_answer(asked: data.Asked, home: Path) -> None:
    st.success(markdown_text(asked.answer["answer"]), icon=":material/star:")
    if counted := asked.answer.get("counted_in_words"):
        st.warning(markdown_text(counted), icon=":material/straighten:")
    if asked.line is None:
        with st.expander("Numbers of spot devices tried"):
            st.dataframe(data.goal_table(asked), hide_index=True)
            st.caption("Medians, and in parentheses the lowest and highest of the futures.")
    else:
        with st.expander("Policies compared"):
            _show_policies(asked)
        with st.expander("Time line and ledger of a run"):
            _show_time_line(asked, asked.line, home)
    with st.expander("What it rests on"):
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
                f"Of {asked.best['policy']}: the median, and below it the lowest and highest of the futures.",
            )
            for name, (heading, written) in data.FIGURES.items() if name in asked.best
        )
    )  # fmt: skip
    st.dataframe(data.policy_table(asked), hide_index=True)
    st.caption(
        markdown_text(
            f"Medians, and in parentheses the lowest and highest of {asked.answer['futures']} futures, which "
            "all policies share; × compares with the best. ★ least dollars of what a live run can do; of "
            "policies within 1 % of them, the one with the most drafts. All policies do the same iterations: "
            "what exploration is worth to learning is not in the table."
        )
    )
    _show_milestones(asked)
    for sentence in asked.answer.get("conclusions", ()):
        st.markdown(markdown_text(sentence))
    st.plotly_chart(data.policy_chart(asked.policies), key="what-if-policies", config=PLOT_SETTINGS)


def _show_milestones(asked: data.Asked) -> None:
    table = data.milestone_table(asked)
    if table.empty:
        return
    st.subheader("To a score")
    st.dataframe(table, hide_index=True)
    curves, other = asked.answer["curves"]["name"], asked.answer["other_learner"]
    st.caption(
        markdown_text(
            "Time and dollars to a share of the baseline's progress: the median iteration of the futures "
            f"times the median iterations of the curves {curves}{other and f' ({other})'}, without the start "
            "and evaluations. Learning: lowest and highest of the run seeds over the median, to the last "
            "score; system: of the futures. ≥ some run seeds did not get there."
        )
    )


def _show_time_line(asked: data.Asked, line: data.TimeLine, home: Path) -> None:
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
    st.caption(
        f"The run of {line.policy} in the first of the futures. 0 is the evaluation before training.{few}"
    )
    st.download_button(
        "Chrome trace (JSON)", data=lambda: line.text, file_name=f"what-if-{line.policy}.json",
        mime="application/json", icon=":material/download:", on_click="ignore",
        help="The whole run, for ui.perfetto.dev or chrome://tracing.",
    )  # fmt: skip
    st.subheader("Ledger of the run")
    spent = line.by_state()
    show_in_pairs([data.marked(chart) for chart in utilisation_charts(line.utilisation())], "what-if-use")
    chart = data.marked(market_bars(spent, "state", "What would be paid for", modelled=False))
    st.plotly_chart(chart, key="what-if-states", config=PLOT_SETTINGS)


_show()
