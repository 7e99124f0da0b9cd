"""Separate evaluations, reproductions and what they are compared with: kept, found again, figures by tag."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, RunNotFoundError, StorageError
from storage.evaluations.figures import figures_of
from storage.evaluations.reproductions import (
    HeldOut,
    Reproduction,
    read_reference,
    reference_of,
    reference_run_of,
    reproduction_of,
    reproductions,
    write_reference,
    write_reproduction,
)
from storage.evaluations.separate import EvaluationStore, SeparateEvaluation, comparable, compare_evaluations
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from storage.record.records import EvaluationRecord, JudgedImage
from storage.record.run_store import RunStore
from tests.sample_run import write_sample_run

BASE: dict[str, Any] = {"reward": {"scorer": "shapes"}, "prompts": {"evaluate": "builtin:shapes-evaluate"}}


@pytest.fixture
def store(tmp_path: Path) -> EvaluationStore:
    return EvaluationStore(Home(tmp_path))


def image(prompt_id: int, seed: int, score: float, tag: str = "", prompt: str = "") -> JudgedImage:
    text = prompt or f"prompt {prompt_id}"
    return JudgedImage(prompt_id, seed, text, tag, score, score == 1, "read it", None)


def evaluation(key: str, run_id: str | None, started_at: float, **settings: Any) -> SeparateEvaluation:
    config = RunConfig.model_validate(BASE | settings)
    return SeparateEvaluation(
        key, run_id, 3, 3, started_at, started_at + 9, 0.5, 0.25, 4, None, config.model_dump(mode="json"),
        {"torch": "2"},
    )  # fmt: skip


def test_what_is_written_is_found_again(store: EvaluationStore):
    first, later = evaluation("e-1", "mine", 10.0), evaluation("e-2", "mine", 20.0)
    images = [image(0, 0, 1.0, "counting"), image(0, 1, 0.5, "counting"), image(1, 0, 0.0)]
    images[1] = dataclasses.replace(images[1], figures={"grain": 0.1, "edges": 0.2})
    store.commit(first, images)
    store.commit(later, images[:1])
    assert store.all() == [later, first]
    assert store.find("e-1") == first
    assert store.find("mine").evaluation_id == "e-2", "a run's name means its newest evaluation"
    assert store.images("e-1") == images
    assert first.config.reward.scorer == "shapes"


def test_an_identifier_is_used_once(store: EvaluationStore):
    store.commit(evaluation("e-1", None, 10.0), [image(0, 0, 1.0)])
    with pytest.raises(StorageError, match="e-1 exists already"):
        store.commit(evaluation("e-1", None, 20.0), [image(0, 0, 0.0)])
    assert store.images("e-1")[0].score == 1.0


def test_what_is_not_there_is_said_with_what_is(store: EvaluationStore):
    with pytest.raises(RunNotFoundError, match="there are none yet"):
        store.find("e-1")
    write_sample_run(RunStore(store.home), "mine", iterations=1)
    with pytest.raises(RunNotFoundError, match="spotlight evaluate mine"):
        store.find("mine")
    store.commit(evaluation("evaluate-base-1", None, 10.0), [image(0, 0, 1.0)])
    with pytest.raises(RunNotFoundError, match="there are evaluate-base-1"):
        store.find("evaluate-base-2")


def test_figures_by_tag_and_overall_with_the_prompt_as_the_unit():
    images = [
        image(0, 0, 1.0, "counting"), image(0, 1, 0.0, "counting"),
        image(1, 0, 1.0, "counting"), image(1, 1, 1.0, "counting"),
        image(2, 0, 0.0, "position"), image(2, 1, 0.5, "position"),
    ]  # fmt: skip
    found = figures_of(images)
    assert found["prompts"] == 3
    assert found["score"] == pytest.approx(3.5 / 6)
    assert found["exact"] == pytest.approx(3 / 6)
    counting, position = found["by_tag"]["counting"], found["by_tag"]["position"]
    assert (counting["prompts"], counting["score"], counting["exact"]) == (2, 0.75, 0.75)
    assert counting["score_interval"] == [0.0, 1.0], "two prompts say next to nothing"
    assert (position["prompts"], position["score"], position["exact"]) == (1, 0.25, 0.0)
    assert found["over_tags"]["score"] == pytest.approx(0.5)
    assert "t interval over prompts" in found["interval"]


def test_prompts_without_tags_have_overall_figures_only():
    found = figures_of([image(0, 0, 1.0), image(1, 0, 0.5)])
    assert "by_tag" not in found
    assert "over_tags" not in found
    assert found["score"] == 0.75


def compared(store: EvaluationStore) -> dict[str, Any]:
    return compare_evaluations(store.home, "before", "after")


def test_a_small_gain_on_every_prompt_shows_in_pairs(store: EvaluationStore):
    # Prompts differ far more than the two policies do.
    before = [image(prompt, seed, 0.04 * (prompt % 20), "t") for prompt in range(120) for seed in range(2)]
    after = [image(i.prompt_id, i.seed_index, i.score + 0.05 + 0.01 * (i.prompt_id % 2), "t") for i in before]
    store.commit(evaluation("before", None, 1.0), before)
    changed = {"sampling": {"evaluate_steps": 30}, "name": "other", "budget": {"usd": 5.0}}
    store.commit(evaluation("after", "mine", 2.0, **changed), after)
    found = compared(store)
    assert found["pairs"] == 240
    assert found["prompts"] == 120
    assert found["score"] == pytest.approx(0.055)
    low, high = found["score_interval"]
    assert 0.03 < low < 0.055 < high < 0.08
    assert found["by_tag"]["t"]["score"] == pytest.approx(0.055)
    assert found["same_noise"]
    assert found["settings_that_differ"] == ["sampling.evaluate_steps"]
    apart = figures_of(before)["score_interval"]
    assert apart[1] - apart[0] > 0.075, "the two means alone would not tell"


def test_only_images_of_the_same_prompt_place_and_seed_are_paired(store: EvaluationStore):
    store.commit(
        evaluation("before", None, 1.0),
        [image(0, 0, 0.0), image(0, 1, 0.0), image(1, 0, 0.0), image(2, 0, 0.0, prompt="another")],
    )
    later = [image(0, 0, 1.0), image(1, 0, 0.5), image(1, 1, 1.0), image(2, 0, 1.0)]
    store.commit(evaluation("after", None, 2.0, seed=1), later)
    found = compared(store)
    assert (found["pairs"], found["prompts"]) == (2, 2)
    assert found["score"] == pytest.approx(0.75)
    assert not found["same_noise"]
    assert "seed" in found["settings_that_differ"]


def test_other_judges_and_other_prompts_do_not_compare(store: EvaluationStore, tmp_path: Path):
    store.commit(evaluation("before", None, 1.0), [image(0, 0, 0.0)])
    store.commit(evaluation("after", None, 2.0, reward={"scorer": "jpeg"}), [image(0, 0, 1.0)])
    with pytest.raises(ConfigurationError, match=r"another reward.*'shapes', now 'jpeg'"):
        compared(store)
    store.commit(evaluation("elsewhere", None, 3.0), [image(7, 0, 1.0)])
    with pytest.raises(ConfigurationError, match="no judged image of the same prompt and seed"):
        compare_evaluations(Home(tmp_path), "before", "elsewhere")
    config = RunConfig.model_validate(BASE)
    with pytest.raises(ConfigurationError, match="has none of these 96 prompts"):
        comparable(Home(tmp_path), config, {}, "before")


def test_two_versions_of_a_rewards_file_do_not_compare(store: EvaluationStore):
    for key, digest in (("before", "1" * 64), ("after", "2" * 64), ("unknown", "")):
        facts = {"digest reward": digest} if digest else {}
        made = dataclasses.replace(evaluation(key, None, 1.0), environment=facts)
        store.commit(made, [image(0, 0, 1.0, prompt="a cat")])
    changed = r"file of reward\.scorer = 'shapes' has changed since evaluation before \(SHA-256 2{12}, was 1"
    with pytest.raises(ConfigurationError, match=changed):
        compared(store)
    with pytest.raises(ConfigurationError, match=changed):
        comparable(store.home, RunConfig.model_validate(BASE), {"digest reward": "2" * 64}, "before")
    assert compare_evaluations(store.home, "unknown", "after")["pairs"] == 1, "recorded without the digest"


def test_the_second_judges_figures_compare_unless_its_file_is_known_to_differ(store: EvaluationStore):
    for key, digest in (("before", "1" * 64), ("after", "2" * 64), ("unknown", "")):
        facts = {"digest evaluation.judge": digest} if digest else {}
        made = evaluation(key, None, 1.0, evaluation={"judge": "jpeg"})
        judged = dataclasses.replace(image(0, 0, 1.0), figures={"judge": 0.5})
        store.commit(dataclasses.replace(made, environment=facts), [judged])
    assert "judge" not in compared(store)["quality"]
    for before, after in (("unknown", "after"), ("before", "unknown")):
        assert "judge" in compare_evaluations(store.home, before, after)["quality"]


@pytest.fixture
def recorded(tmp_path: Path) -> RunStore:
    recorded = RunStore(Home(tmp_path / "home"))
    write_sample_run(recorded, "one", iterations=3)
    CheckpointStore(recorded.home.run("one")).save(3, {"weights.safetensors": b"abc"}, {})
    return recorded


def test_a_run_becomes_a_reference_that_survives_a_file(recorded: RunStore, tmp_path: Path):
    was = reference_of(recorded, "one")
    # SHA-256 of "abc" as FIPS 180-2 gives it.
    assert was.digests == {
        "weights.safetensors": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    }
    assert list(was.rewards) == [1, 2, 3]
    assert was.run_config == recorded.run("one").config
    last = [one.score for one in was.scores[max(was.scores)]]
    assert was.score == pytest.approx(sum(last) / len(last))
    assert was.prompts["evaluate"]
    file = tmp_path / "one.json"
    write_reference(was, file)
    assert read_reference(file) == was


def test_a_reference_leaves_images_without_a_score_out(recorded: RunStore):
    failed = dataclasses.replace(image(1, 0, 0.0), error="timed out")
    images = [image(0, 0, 0.5), failed]
    recorded.commit_evaluation(EvaluationRecord("one", 9, 9, 9.0, 9.5, 0.5, 0.0, images))
    was = reference_of(recorded, "one")
    assert was.scores[9] == [HeldOut(0, 0, 0.5, False)] and was.score == 0.5


def test_an_unfinished_run_is_no_reference(recorded: RunStore):
    recorded.create_run("two", RunConfig(), {}, os.getpid())
    with pytest.raises(ConfigurationError, match="'two' is running, and only a finished run"):
        reference_of(recorded, "two")
    with pytest.raises(RunNotFoundError):
        reference_of(recorded, "three")


def done(name: str, started_at: float, verdict: str = "recorded", series: str = "glyphs") -> Reproduction:
    whole = Reproduction(
        name, series, "train", "one", f"run-{name}", started_at, started_at + 1, "recorded", "said", 0.5, 0.6,
        0.1, 0.0, 0.2, [{"kind": "data", "what": "a", "was": "b", "is": "c"}],
    )  # fmt: skip
    return dataclasses.replace(whole, verdict=verdict)


def test_a_row_written_is_read_and_writing_it_again_changes_nothing(recorded: RunStore):
    one = done("x", 10.0)
    for _ in range(2):
        write_reproduction(recorded.home, one)
    assert reproduction_of(recorded.home, "x") == one
    with recorded.reading() as connection:
        assert list(reproductions(connection)["reproduction_id"]) == ["x"]
    with pytest.raises(RunNotFoundError, match="no reproduction 'y'"):
        reproduction_of(recorded.home, "y")


def test_a_series_is_compared_with_its_latest_recorded_run(recorded: RunStore):
    assert reference_run_of(recorded.home, "glyphs") is None
    for row in (done("a", 1.0), done("b", 5.0), done("c", 9.0, "drifted"), done("d", 10.0, series="shapes")):
        write_reproduction(recorded.home, row)
    assert reference_run_of(recorded.home, "glyphs") == "run-b"
