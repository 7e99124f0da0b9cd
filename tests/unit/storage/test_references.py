"""What a finished run came to, read, written and read again; and the rows of reproductions."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, RunNotFoundError
from storage.evaluations.reproductions import (
    Reproduction,
    read_reference,
    reference_of,
    reference_run_of,
    reproduction_of,
    reproductions,
    write_reference,
    write_reproduction,
)
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from storage.record.run_store import RunStore
from tests.sample_run import write_sample_run


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    store = RunStore(Home(tmp_path / "home"))
    write_sample_run(store, "one", iterations=3)
    CheckpointStore(store.home.run("one"), 2).save(3, {"weights.safetensors": b"abc"}, {})
    return store


def test_a_run_becomes_a_reference_that_survives_a_file(store: RunStore, tmp_path: Path):
    was = reference_of(store, "one")
    # SHA-256 of "abc" as FIPS 180-2 gives it.
    assert was.digests == {
        "weights.safetensors": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    }
    assert list(was.rewards) == [1, 2, 3]
    assert was.run_config == store.run("one").config
    last = [one.score for one in was.scores[max(was.scores)]]
    assert was.score == pytest.approx(sum(last) / len(last))
    assert was.prompts["evaluate"]
    file = tmp_path / "one.json"
    write_reference(was, file)
    assert read_reference(file) == was


def test_an_unfinished_run_is_no_reference(store: RunStore):
    store.create_run("two", RunConfig(), {}, os.getpid())
    with pytest.raises(ConfigurationError, match="'two' is running, and only a finished run"):
        reference_of(store, "two")
    with pytest.raises(RunNotFoundError):
        reference_of(store, "three")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "scores": 3}'])
def test_a_file_that_is_no_reference_is_refused(text: str, tmp_path: Path):
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"bad\.json is no reference .*--write FILE"):
        read_reference(file)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="No such file"):
        read_reference(tmp_path / "none.json")


def done(name: str, started_at: float, verdict: str = "recorded", series: str = "glyphs") -> Reproduction:
    whole = Reproduction(
        name, series, "train", "one", f"run-{name}", started_at, started_at + 1, "recorded", "said", 0.5, 0.6,
        0.1, 0.0, 0.2, [{"kind": "data", "what": "a", "was": "b", "is": "c"}],
    )  # fmt: skip
    return dataclasses.replace(whole, verdict=verdict)


def test_a_row_written_is_read_and_writing_it_again_changes_nothing(store: RunStore):
    one = done("x", 10.0)
    for _ in range(2):
        write_reproduction(store.home, one)
    assert reproduction_of(store.home, "x") == one
    with store.records.reading() as connection:
        assert list(reproductions(connection)["reproduction_id"]) == ["x"]
    with pytest.raises(RunNotFoundError, match="no reproduction 'y'"):
        reproduction_of(store.home, "y")


def test_a_series_is_compared_with_its_latest_recorded_run(store: RunStore):
    assert reference_run_of(store.home, "glyphs") is None
    for row in (done("a", 1.0), done("b", 5.0), done("c", 9.0, "drifted"), done("d", 10.0, series="shapes")):
        write_reproduction(store.home, row)
    assert reference_run_of(store.home, "glyphs") == "run-b"
