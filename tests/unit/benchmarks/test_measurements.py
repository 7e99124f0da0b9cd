"""docs/measurements.md from kept results: figures by their path, and judgements that fit the results."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.documents.measurements import (
    JudgementError,
    cell,
    check_judgements,
    document,
    fill,
    result_lines,
    with_block,
)

FIGURES = {
    "lost": 0, "goodput": 0.14470, "same": True, "gap": None, "by": {"kill/now": [1.25, 2.5]}, "none": [],
    "many": [1.0, None, 2.0, 9.0], "nothing": [None], "counts": {"kill": 2, "hang": 1},
}  # fmt: skip


def kept(commit: str = "abc", **figures: Any) -> dict[str, Any]:
    origin = {"command": "python -m benchmarks.overlap --keep", "device": "cpu", "date": "2026-11-23"}
    return {**origin, "commit": commit, "figures": figures or dict(FIGURES)}


def judged(**entry: Any) -> dict[str, Any]:
    return {"title": "A title", "commit": "abc", "kind": "**Measured**.", "judgement": "Good.", **entry}


def judgements(study: dict[str, Any] | None = None, **results: dict[str, Any]) -> dict[str, Any]:
    section = {"title": "All", "results": list(results)}
    studies = {"text": "Run it at {last_commit}.", "last_commit": "def", "results": study or {}}
    return {"introduction": "Intro.", "section": [section], "result": results, "study": studies}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{lost} of {goodput:.2f}; {by > kill/now:.1f}; {by > kill/now > 1}", "0 of 0.14; 1.2, 2.5; 2.5"),
        ("{same}, {gap}, {none}, {counts}", "yes, –, none, kill 2, hang 1"),
        ("{many:median .1f} of {many:count}, {nothing:median .1f}", "2.0 of 4, –"),
    ],
)
def test_figures_are_found_by_their_path_and_put_in_words(text: str, filled: str):
    assert fill(text, FIGURES) == filled
    with pytest.raises(JudgementError, match="gone"):
        fill("{by > gone}", FIGURES)


def test_a_cell_without_a_figure_has_no_unit():
    assert [cell(text, FIGURES) for text in ("{gap:.2f} s", "{goodput:.2f} s")] == ["–", "0.14 s"]


def test_a_study_whose_code_is_gone_keeps_its_figures_and_the_commit_that_had_it():
    study = {"x": {"title": "Old", "says": "{lost}."}}
    check_judgements({"x": kept()}, judgements(study))
    text = document({"x": kept()}, judgements(study))
    assert "**Old.** 0." in text and "commit `abc`" in text and "Run it at def." in text
    study["x"]["says"] = "{gone}"
    with pytest.raises(JudgementError, match="x: no figure 'gone'"):
        document({"x": kept()}, judgements(study))


def test_a_result_shows_figures_tables_judgement_and_origin():
    tables = [{"rows": "by_kind", "columns": [["kind", "{name}"], ["number", "{count}"]]}]
    entry = judged(figures=[["lost of {all}", "{lost}"]], tables=tables, judgement="{lost} lost.")
    result = kept(**{"lost": 3, "all": 9, "by_kind": {"kill": {"count": 3}}})
    text = "\n".join(result_lines("x", result, entry))
    assert "| lost of 9 | 3 |" in text and "| kill | 3 |" in text and "\n3 lost.\n" in text
    assert "`python -m benchmarks.overlap`, `x.json`, commit `abc`, 2026-11-23, cpu." in text
    own = "\n".join(result_lines("overlap", kept(), judged()))
    assert "`python -m benchmarks.overlap`, commit `abc`" in own, "the command names the file"
    with pytest.raises(JudgementError, match="x: no figure 'gone'"):
        result_lines("x", kept(), judged(judgement="{gone}"))
    with pytest.raises(JudgementError, match=r"x: 'make ui' runs no benchmark of this repository"):
        result_lines("x", kept(), judged(command="make ui"))
    gone = "\n".join(
        result_lines("objectives", kept(), judged(command="python -m benchmarks.objectives --keep"))
    )
    assert "`benchmarks.objectives` of commit `abc`" in gone
    whole = document({"x": kept()}, judgements(x=judged()))
    assert "Nothing has been measured on a GPU yet" in whole


@pytest.mark.parametrize(
    ("results", "entries", "says"),
    [
        ({"x": kept(), "y": kept()}, judgements(x=judged()), r"without an entry.*y"),
        ({}, judgements(x=judged()), "without a kept result: x"),
        ({"x": kept()}, {**judgements(x=judged()), "section": []}, "check x"),
        ({"x": kept(commit="def")}, judgements(x=judged()), "of commit def, its judgement of abc: read"),
    ],
)
def test_results_and_judgements_have_to_fit(results: dict, entries: dict, says: str):
    check_judgements({"x": kept()}, judgements(x=judged()))
    with pytest.raises(JudgementError, match=says):
        check_judgements(results, entries)


def test_the_readme_keeps_what_stands_around_its_block():
    begin = "<!-- python -m benchmarks.measurements: begin -->\n"
    end = "<!-- python -m benchmarks.measurements: end -->"
    assert with_block(f"a\n{begin}old\n{end}\nb", "new\n") == f"a\n{begin}\nnew\n{end}\nb"
    with pytest.raises(JudgementError, match="no block"):
        with_block("a\nb", "new")
