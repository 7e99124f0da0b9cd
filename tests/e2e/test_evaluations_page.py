"""The page Evaluations as a person meets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from storage.config.run_config import RunConfig
from storage.evaluations.separate import EvaluationStore, SeparateEvaluation
from storage.record.records import JudgedImage
from storage.record.run_store import RunStore
from tests.dashboard_page import opened_page, pictures, sentences
from tests.sample_run import write_sample_run

pytestmark = pytest.mark.xdist_group("recorded")


def evaluate(
    store: RunStore,
    name: str,
    run_id: str | None,
    scores: list[float],
    scorer: str = "ocr",
    folder: str | None = None,
) -> None:
    """An evaluation of one image a prompt; the scorer fails on what is below 0."""
    images = [
        JudgedImage(place, 0, f"a <b>{place}</b>", "signs" if place % 2 else "", max(0.0, score), score == 1,
                    "read it", "no answer" if score < 0 else None)
        for place, score in enumerate(scores)
    ]  # fmt: skip
    judged = [score for score in scores if score >= 0]
    config = RunConfig.model_validate({"reward": {"scorer": scorer}})
    number = len(EvaluationStore(store.home).all())
    EvaluationStore(store.home).commit(
        SeparateEvaluation(
            name, run_id, 10 if run_id else 0, 0, 1e9 + number, 1e9 + number + 5, sum(judged) / len(judged),
            judged.count(1) / len(judged), len(scores), folder, config.model_dump(mode="json"), {},
        ),
        images,
    )  # fmt: skip


def test_without_any_it_says_how_to_make_one(store: RunStore):
    page = opened_page("evaluations")
    assert "No evaluations yet" in sentences(page)
    assert "spotlight evaluate RUN" in page.code[0].value
    assert not any(store.home.path.iterdir())


def test_an_evaluation_is_shown_by_tag_and_image_by_image(store: RunStore):
    evaluate(store, "before", None, [0.0, 0.5, 0.5, 0.0])
    evaluate(store, "after", "r", [1.0, 0.5, -1.0, 0.5])
    page = opened_page("evaluations")
    listed, by_tag, images = (frame.value for frame in page.dataframe)
    assert listed["evaluation"].tolist() == ["after", "before"]
    assert listed["of"].tolist() == ["r", "untouched model"]
    rows = by_tag.set_index("tag")
    assert rows.loc["all prompts", ["prompts", "score"]].tolist() == [3, pytest.approx(2 / 3)]
    assert rows.loc["signs", "score"] == 0.5
    assert rows.index.tolist() == ["no tag", "signs", "mean of the tags", "all prompts"]
    assert (
        rows.loc["all prompts", "score low (95 %)"] <= 2 / 3 <= rows.loc["all prompts", "score high (95 %)"]
    )
    assert images["prompt"].tolist() == [f"a <b>{place}</b>" for place in range(4)]
    assert "failed on 1 images" in page.warning[0].value
    assert "were not kept" in "\n".join(caption.value for caption in page.caption)


def test_two_evaluations_are_compared_prompt_by_prompt(store: RunStore):
    evaluate(store, "before", None, [0.0, 0.5, 0.5, 0.0])
    evaluate(store, "after", None, [1.0, 0.5, 0.5, 0.5])
    page = opened_page("evaluations", evaluation="after")
    page.selectbox("before-after").select("before").run()
    assert not page.exception
    difference = page.dataframe[2].value.set_index("tag")
    assert difference.loc["all prompts", "score"] == pytest.approx(1.5 / 4)
    assert "4 pairs" in "\n".join(caption.value for caption in page.caption)


def test_kept_images_are_shown_with_prompt_and_score(store: RunStore, tmp_path: Path):
    folder = tmp_path / "kept"
    for place in (0, 2):
        (folder / f"{place:05}" / "samples").mkdir(parents=True)
        Image.new("RGB", (8, 8), "red").save(folder / f"{place:05}" / "samples" / "0000.png")
    (folder / "00001" / "samples").mkdir(parents=True)
    (folder / "00001" / "samples" / "0000.png").write_text("a secret, and no image")
    evaluate(store, "kept", None, [0.25, 0.5, -1.0], folder=str(folder))
    page = opened_page("evaluations")
    shown = pictures(page)
    assert shown.count("<img") == 2
    assert "a &lt;b&gt;0&lt;/b&gt;" in shown and "score 0.25: read it" in shown
    assert "not scored: no answer" in shown
    said = "\n".join(caption.value for caption in page.caption)
    assert "Missing: 1. 2 of 3 images are shown." in said


@pytest.mark.parametrize("query", [{"evaluation": "a*b"}, {"run": "a*b"}], ids=str)
def test_no_other_evaluation_is_shown_for_an_unknown_one(store: RunStore, query: dict[str, str]):
    evaluate(store, "kept", None, [0.5])
    page = opened_page("evaluations", **query)
    assert page.selectbox[0].value is None
    assert page.warning[0].value == r"No evaluation or evaluated run is called a\*b."
    assert len(page.dataframe) == 1, "the list of all"
    page.selectbox[0].select("kept").run()
    assert "Score 0.500" in page.markdown[0].value and not page.warning


def test_an_evaluation_and_the_run_of_its_weights_lead_to_each_other(store: RunStore):
    write_sample_run(store, "r", iterations=1)
    evaluate(store, "of-run", "r", [0.5])
    evaluate(store, "newer", None, [0.5])
    page = opened_page("evaluations", run="r")
    assert page.selectbox[0].value == "of-run"
    [back] = page.get("link_button")
    assert back.proto.url == "/?run=r"
    [to_evaluations] = opened_page("convergence", run="r").get("link_button")
    assert to_evaluations.proto.url == "/evaluations?run=r"
