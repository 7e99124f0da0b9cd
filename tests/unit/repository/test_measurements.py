"""docs/measurements.md from kept results: figures by their path, and judgements that fit the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.documents.measurements import (
    JudgementError,
    as_text,
    cell,
    check_judgements,
    document,
    figure,
    fill,
    read_judgements,
    result_lines,
    with_block,
)

FIGURES = {
    "lost": 0,
    "goodput": 0.14470,
    "same": True,
    "gap": None,
    "by": {"kill/now": [1.25, 2.5]},
    "none": [],
}


def kept(commit: str = "abc", **figures: Any) -> dict[str, Any]:
    origin = {"command": "python -m benchmarks.overlap --keep", "device": "cpu", "date": "2026-11-23"}
    return {**origin, "commit": commit, "figures": figures or dict(FIGURES)}


def judged(**entry: Any) -> dict[str, Any]:
    return {"title": "A title", "commit": "abc", "kind": "**Measured**.", "judgement": "Good.", **entry}


def judgements(**results: dict[str, Any]) -> dict[str, Any]:
    section = {"title": "All", "results": list(results)}
    study = {"text": "Over.", "last_commit": "def", "results": {}}
    return {
        "introduction": "Intro.", "section": [section], "result": results, "study": study,
    }  # fmt: skip


def test_figures_are_found_by_their_path():
    assert figure(FIGURES, "by > kill/now > 1") == 2.5
    assert fill("{lost} of {goodput:.2f}; {by > kill/now:.1f}", FIGURES) == "0 of 0.14; 1.2, 2.5"
    with pytest.raises(JudgementError, match="gone"):
        fill("{by > gone}", FIGURES)


def test_figures_that_are_no_numbers_are_words():
    assert [as_text(value) for value in (True, None, [], {"kill": 2, "hang": 1})] == [
        "yes", "–", "none", "kill 2, hang 1",
    ]  # fmt: skip


def test_an_entry_has_what_it_lacks_from_the_one_that_it_is_like(tmp_path: Path):
    path = tmp_path / "judgements.toml"
    path.write_text(
        '[result.one]\ntitle = "One"\nkind = "**Measured**."\n[result.two]\nlike = "one"\ntitle = "Two"'
    )
    assert read_judgements(path)["result"] == {
        "one": {"title": "One", "kind": "**Measured**."},
        "two": {"like": "one", "title": "Two", "kind": "**Measured**."},
    }
    path.write_text('[result.two]\nlike = "three"')
    with pytest.raises(JudgementError, match="two is like 'three'"):
        read_judgements(path)


def test_a_list_may_be_told_by_its_median_and_length():
    assert fill("{many:median .1f} of {many:count}", {"many": [1.0, None, 2.0, 9.0]}) == "2.0 of 4"
    assert fill("{many:median .1f}", {"many": [None]}) == "–"


def test_a_study_whose_code_is_gone_keeps_its_figures_and_the_commit_that_had_it():
    studies = {
        "text": "Run it at {last_commit}.",
        "last_commit": "def",
        "results": {"x": {"title": "Old", "says": "{lost}."}},
    }
    told = {**judgements(), "study": studies}
    check_judgements({"x": kept()}, told)
    text = document({"x": kept()}, told)
    assert "**Old.** 0." in text and "commit `abc`" in text and "Run it at def." in text
    studies["results"]["x"]["says"] = "{gone}"
    with pytest.raises(JudgementError, match="x: no figure 'gone'"):
        document({"x": kept()}, told)


def test_a_cell_without_a_figure_has_no_unit():
    assert cell("{gap:.2f} s", FIGURES) == "–"
    assert cell("{goodput:.2f} s", FIGURES) == "0.14 s"


def test_a_result_shows_figures_tables_judgement_and_origin():
    tables = [{"rows": "by_kind", "columns": [["kind", "{name}"], ["number", "{count}"]]}]
    entry = judged(figures=[["lost of {all}", "{lost}"]], tables=tables, judgement="{lost} lost.")
    text = "\n".join(
        result_lines("x", kept(**{"lost": 3, "all": 9, "by_kind": {"kill": {"count": 3}}}), entry)
    )
    assert "| lost of 9 | 3 |" in text
    assert "| kill | 3 |" in text
    assert "\n3 lost.\n" in text
    assert "`python -m benchmarks.overlap`, `x.json`, commit `abc`, 2026-11-23, cpu." in text
    own = "\n".join(result_lines("overlap", kept(), judged()))
    assert "`python -m benchmarks.overlap`, commit `abc`" in own, "the command names the file"


def test_a_judgement_of_a_figure_that_is_gone_is_refused():
    with pytest.raises(JudgementError, match="x: no figure 'gone'"):
        result_lines("x", kept(), judged(judgement="{gone}"))


def test_results_and_judgements_have_to_fit():
    check_judgements({"x": kept()}, judgements(x=judged()))
    with pytest.raises(JudgementError, match=r"without an entry.*y"):
        check_judgements({"x": kept(), "y": kept()}, judgements(x=judged()))
    with pytest.raises(JudgementError, match="without a kept result: x"):
        check_judgements({}, judgements(x=judged()))
    with pytest.raises(JudgementError, match="look at x"):
        check_judgements({"x": kept()}, {**judgements(x=judged()), "section": []})


def test_a_renewed_result_wants_its_judgement_read_again():
    with pytest.raises(JudgementError, match="of commit def, its judgement of abc: read"):
        check_judgements({"x": kept(commit="def")}, judgements(x=judged()))


def test_the_page_says_that_nothing_was_measured_on_a_gpu():
    assert "Nothing has been measured on a GPU yet" in document({"x": kept()}, judgements(x=judged()))


def test_the_readme_keeps_what_stands_around_its_block():
    begin = "<!-- python -m benchmarks.measurements: begin -->\n"
    end = "<!-- python -m benchmarks.measurements: end -->"
    assert with_block(f"a\n{begin}old\n{end}\nb", "new\n") == f"a\n{begin}\nnew\n{end}\nb"
    with pytest.raises(JudgementError, match="no block"):
        with_block("a\nb", "new")
