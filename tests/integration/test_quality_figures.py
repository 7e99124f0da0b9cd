"""What images look like, and what a second judge says of them: written with an evaluation, read and drawn."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from storage.evaluations.figures import tagged_estimates
from storage.evaluations.quality import quality_verdict
from storage.record.queries.images import figure_means, paired_figures, pictured_images
from storage.record.records import EvaluationRecord, JudgedImage
from storage.record.results import held_out_scores, run_result
from storage.record.run_store import RunStore
from ui.data.run import read_quality, read_run
from ui.pages.convergence.charts import part_charts, quality_charts, quality_table, score_chart
from ui.pages.convergence.verdict import verdict
from ui.report.report import report_page

pytestmark = pytest.mark.usefixtures("run_r")


def evaluation(iteration: int, score: float, distance: float, **more: float) -> EvaluationRecord:
    images = [
        JudgedImage(
            place, 0, f"sign {place}", "", score, False, "", None,
            figures={"truth_distance": distance * (1 + place / 100), "part_ocr": score, **more},
        )
        for place in range(16)
    ]  # fmt: skip
    return EvaluationRecord("r", iteration, iteration, 0.0, 1.0, score, 0.0, images)


def test_figures_are_written_once_and_paired_with_the_untouched_model_s(store: RunStore):
    store.commit_evaluation(evaluation(0, 0.25, 0.1))
    for _ in range(2):
        store.commit_evaluation(evaluation(10, 0.5, 0.2, grain=0.5))
    with store.reading() as connection:
        means, pairs = figure_means(connection, "r"), paired_figures(connection, "r")
        earlier = paired_figures(connection, "r", 0)
    assert means["iteration"].tolist() == [0, 10]
    assert means["truth_distance"].tolist() == pytest.approx([0.1075, 0.215])
    assert means["part_ocr"].tolist() == [0.25, 0.5]
    assert means["grain"].isna().tolist() == [True, False]
    assert set(pairs["name"]) == {"score", "truth_distance", "part_ocr"}
    assert len(pairs) == 48 and earlier.empty
    verdict = quality_verdict(pairs)
    assert verdict is not None and verdict.is_hacking
    store.discard_after("r", 5)
    with store.reading() as connection:
        assert figure_means(connection, "r")["iteration"].tolist() == [0]


@pytest.mark.parametrize(("risen", "found"), [(10, "No clear change yet"), (12, "Better")])
def test_a_score_is_better_where_its_interval_leaves_zero_out(store: RunStore, risen: int, found: str):
    """The mean of 24 prompts, 10 of which gained a third, is 0.139, and its interval -0.002 to 0.259."""
    for iteration, better in ((0, 0), (5, risen)):
        images = [
            JudgedImage(n, 0, f"sign {n}", "", (1 + (n < better)) / 3, False, "", None) for n in range(24)
        ]
        store.commit_evaluation(EvaluationRecord("r", iteration, iteration, 0.0, 1.0, 0.5, 0.0, images))
    view = read_run(store, "r")
    interval = tagged_estimates([1 / 3] * risen + [0.0] * (24 - risen), [""] * 24, -1.0).overall
    assert view.change is not None and view.change.is_clear == (interval.low > 0)
    assert view.change.mean - view.change.margin == pytest.approx(interval.low)
    assert verdict(view)[1].startswith(f"**{found}: score 0.33 ")


def test_the_change_is_that_of_prompts_also_if_some_have_fewer_judged_images(store: RunStore):
    """The interval is one over prompts; around the mean of images it would take a clear change for none."""
    for iteration, later in ((0, 0.3), (5, 0.8)):
        images = [JudgedImage(0, seed, "sign 0", "", 0.3, False, "", None) for seed in range(8)]
        images += [JudgedImage(n, 0, f"sign {n}", "", later, False, "", None) for n in range(1, 12)]
        store.commit_evaluation(EvaluationRecord("r", iteration, iteration, 0.0, 1.0, 0.5, 0.0, images))
    view = read_run(store, "r")
    interval = tagged_estimates([0.0] + [0.5] * 11, [""] * 12, -1.0).overall
    assert interval.low > 0 and view.change is not None and view.change.is_clear
    assert view.change.mean - view.change.margin == pytest.approx(interval.low)
    assert view.change.after - view.change.before == pytest.approx(view.change.mean)


def test_an_image_that_was_not_judged_has_neither_gained_nor_lost(store: RunStore):
    failed = {0: {0, 2}, 10: set[int](), 20: {1, 2}}
    for iteration, places in failed.items():
        images = [
            JudgedImage(n, 0, "sign", "", 0.0, False, "", "gone", png=b"png")
            if n in places or n == 3
            else JudgedImage(n, 0, "sign", "", 0.5 + iteration / 100, False, "", None, png=b"png")
            for n in range(4)
        ]
        record = EvaluationRecord("r", iteration, iteration, 0.0, 1.0, 0.5, 0.0, images)
        store.commit_evaluation(record)
    with store.reading() as connection:
        pictured = pictured_images(connection, "r")
    assert pictured["score_first"].tolist() == pytest.approx([0.6, 0.5, 0.6, math.nan], nan_ok=True)
    assert pictured["score_latest"].tolist() == pytest.approx([0.7, 0.6, 0.6, math.nan], nan_ok=True)


def test_an_image_without_a_score_is_in_no_comparison_of_scores(store: RunStore):
    store.commit_evaluation(evaluation(0, 0.25, 0.1))
    later = evaluation(10, 0.5, 0.2)
    failed = dataclasses.replace(later.images[0], error="gone")
    store.commit_evaluation(dataclasses.replace(later, images=[failed, *later.images[1:]]))
    with store.reading() as connection:
        counts = paired_figures(connection, "r").groupby("name").size()
    assert counts.to_dict() == {"part_ocr": 16, "score": 15, "truth_distance": 16}


def test_what_the_page_and_the_report_show_of_them(store: RunStore):
    store.commit_evaluation(evaluation(0, 0.25, 0.1, edges=0.0, diversity_across=1.0, judge=0.4))
    store.commit_evaluation(evaluation(10, 0.5, 0.2, edges=0.1, diversity_across=0.9, judge=0.3))
    with store.reading() as connection:
        quality = read_quality(connection, "r")
    drawn: list[Any] = quality_charts(quality)
    assert quality.judges is not None and quality.judges["judge"].tolist() == pytest.approx([0.4, 0.3])
    beside: Any = score_chart(read_run(store, "r"), "score", "iteration", quality.judges)
    courses = {line.name: list(line.y) for line in beside.data}
    assert courses["held-out prompts"] == [0.25, 0.5]
    assert courses["second judge"] == pytest.approx([0.4, 0.3])
    verdicts: Any = score_chart(read_run(store, "r"), "exact", "iteration", quality.judges)
    assert "second judge" not in {line.name for line in verdicts.data}, "it is no share of exact images"
    assert [chart.layout.title.text for chart in drawn] == [
        "Distance to the rendered picture", "Looks of the images", "Variety of the images",
    ]  # fmt: skip
    assert list(drawn[0].data[0].y) == pytest.approx([0.0, 1.0])
    assert list(drawn[2].data[0].y) == pytest.approx([0.0, -0.1])
    assert quality.verdict is not None
    assert quality_table(quality.verdict)["worse"].tolist() == ["yes", "yes", "", ""]
    part: Any = part_charts(read_run(store, "r"), quality)[0]
    assert list(part.data[0].y) == [0.25, 0.5]


def test_a_report_of_few_prompts_says_how_many_an_interval_needs(store: RunStore):
    for iteration, prompts in ((0, 16), (10, 7)):
        record = evaluation(iteration, 0.25, 0.1)
        store.commit_evaluation(dataclasses.replace(record, images=record.images[:prompts]))
    report = report_page(store, "r")
    assert "Changes have an interval from 8 prompts on." in report
    assert "<td>-</td><td>-</td>" in report and "<td>nan</td>" not in report


def test_evaluations_compare_over_the_prompts_that_all_have(store: RunStore):
    """The first and the last one have the whole file, and are the run's result."""
    whole, part, last = evaluation(0, 0.2, 0.1), evaluation(10, 0.5, 0.2), evaluation(20, 0.6, 0.3)
    late = [dataclasses.replace(image, score=1.0) for image in last.images[8:]]
    store.commit_evaluation(whole)
    store.commit_evaluation(dataclasses.replace(part, images=part.images[:8]))
    assert run_result(store, "r")["held_out_prompts"] == 8
    store.commit_evaluation(dataclasses.replace(last, images=[*last.images[:8], *late]))
    with store.reading() as connection:
        means = figure_means(connection, "r")
    expected = [distance * 1.035 for distance in (0.1, 0.2, 0.3)]
    assert means["truth_distance"].tolist() == pytest.approx(expected)
    assert [len(of_prompt) for of_prompt in held_out_scores(store, "r").values()] == [8, 8, 8]
    result = run_result(store, "r")
    assert (result["score_before"], result["held_out_prompts"]) == (pytest.approx(0.2), 16)
    assert result["score_after"] == pytest.approx(0.8)
