"""A recorded run done again under Prefect: the same bits, or what differs, kept in the database."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.deployed.forms import ReproductionForm
from flows.post_train import post_train
from flows.reproduce import reproduce
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.environment import EARLIER_ENDS
from storage.errors import ConfigurationError, DriftError, RunNotFoundError
from storage.evaluations.reproductions import reference_of, reproduction_of, reproductions, write_reference
from storage.home import Home
from storage.record.run_store import RunStore
from tests.even_drafts import draft_evenly

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prefect")]


@pytest.fixture(scope="module")
def prompts(home: Home) -> Path:
    """Training prompts of the test's own, which it may change."""
    file = home.path / "train.txt"
    texts = [f'a red sign that says "{word}"' for word in ("ACE", "HJK", "LMN", "PRT", "VWX", "FEC")]
    file.write_text("\n".join(texts) + "\n")
    return file


@pytest.fixture(scope="module")
def config(prompts: Path) -> RunConfig:
    settings = [
        "iterations=2", "runtime.spot_workers=1", "runtime.scorer_workers=1", "evaluation.prompts=4",
        "runtime.cluster=local", f"prompts.train={prompts}", "tracking.to=[]", "reward.scorer=jpeg",
    ]  # fmt: skip
    return load_config("smoke", settings, {})


@pytest.fixture(scope="module")
def store(home: Home, config: RunConfig) -> RunStore:
    post_train(config, "was", "smoke")
    return RunStore(home)


def test_the_same_run_again_is_identical(store: RunStore):
    said = reproduce(ReproductionForm(reference="was"), "again")
    assert said["verdict"] == "identical"
    assert said["differences"] == []
    assert said["difference"] == 0.0
    row = reproduction_of(store.home, "again")
    assert (row.verdict, row.reference, row.run_id) == ("identical", "was", "again")
    assert store.run("again").environment["preset"] == "smoke"
    assert store.run("again").environment["purpose"] == "reproduction"
    assert "purpose" not in store.run("was").environment
    assert row.score_was == row.score_is == pytest.approx(store.run("was").summary["score_after"])


def test_a_run_that_went_on_after_its_end_is_done_again_with_that_end(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
):
    draft_evenly(monkeypatch)
    settings = [
        "runtime.spot_workers=1", "runtime.scorer_workers=1", "evaluation.prompts=4", "runtime.cluster=local",
        "tracking.to=[]", "exploration.strategy=stale", "exploration.candidates=8", "exploration.drafts=24",
        "exploration.stop_with_training=false", "exploration.min_spearman=-1",
    ]  # fmt: skip
    post_train(load_config("smoke", [*settings, "iterations=2"], {}), "extended", "smoke")
    longer = load_config("smoke", [*settings, "iterations=4"], {})
    store.set_limits("extended", longer)
    post_train(longer, "extended", "smoke")
    said = reproduce(ReproductionForm(reference="extended"), "extended-again")
    assert (said["verdict"], said["differences"]) == ("identical", [])
    assert store.run("extended-again").environment[EARLIER_ENDS] == "2 iterations"


def test_its_last_checkpoint_scored_again_from_a_file_is_identical(store: RunStore):
    file = store.home.path / "was.json"
    write_reference(reference_of(store, "was"), file)
    said = reproduce(ReproductionForm(reference=str(file), how="evaluate"), "scored")
    assert said["verdict"] == "identical"
    assert said["series"] == "was.json"
    assert reproduction_of(store.home, "scored").run_id is None


def test_another_seed_and_another_prompt_are_a_drift_and_both_are_named(store: RunStore, prompts: Path):
    before = prompts.read_text()
    try:
        prompts.write_text(before.replace('"ACE"', '"ECA"'))
        with pytest.raises(DriftError, match="data: training prompt 1 was a red sign") as raised:
            reproduce(ReproductionForm(reference="was", settings=["seed=1"]), "changed")
    finally:
        prompts.write_text(before)
    assert "configuration: seed was 0, is 1" in str(raised.value)
    row = reproduction_of(store.home, "changed")
    assert row.verdict == "drifted"
    assert {"kind": "configuration", "what": "seed", "was": "0", "is": "1"} in row.differences
    assert any(one["what"].startswith("SHA-256 of ") for one in row.differences if one["kind"] == "result")
    assert {one["kind"] for one in row.differences} == {"configuration", "data", "result"}


def test_what_cannot_be_done_again_is_refused_and_a_failure_is_kept(store: RunStore, prompts: Path):
    with pytest.raises(RunNotFoundError):
        reproduce(ReproductionForm(reference="nowhere"))
    with pytest.raises(ConfigurationError, match="give only one"):
        reproduce(ReproductionForm(reference="was", renew=True))
    away = prompts.rename(prompts.with_suffix(".away"))
    try:
        with pytest.raises(ValueError, match=r"train\.txt"):
            reproduce(ReproductionForm(reference="was"), "without")
    finally:
        away.rename(prompts)
    row = reproduction_of(store.home, "without")
    assert (row.verdict, row.run_id) == ("failed", None)
    assert "train.txt" in row.message
    with store.reading() as connection:
        assert "failed" in set(reproductions(connection)["verdict"])


def test_the_first_of_a_series_records_its_reference(store: RunStore):
    short = [
        "iterations=1", "evaluation.prompts=4", "runtime.spot_workers=1", "runtime.scorer_workers=1",
        "runtime.cluster=local", "tracking.to=[]", "reward.scorer=jpeg",
    ]  # fmt: skip
    first = reproduce(ReproductionForm(preset="smoke", settings=short), "first")
    assert first["verdict"] == "recorded"
    second = reproduce(ReproductionForm(preset="smoke"), "second")
    assert (second["verdict"], second["reference"]) == ("identical", "first")
    renewed = reproduce(ReproductionForm(preset="smoke", renew=True, settings=short), "third")
    assert renewed["verdict"] == "recorded"
