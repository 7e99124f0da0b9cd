"""The catalogue: views over the files of all runs, for people; no run depends on it."""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pytest
from fsspec.implementations.local import LocalFileSystem

from storage.config.run_config import RunConfig
from storage.home import Home
from storage.record.catalogue import refresh_catalogue
from storage.record.run_store import RunStore
from tests.sample_run import iteration_record, write_sample_run


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(Home(tmp_path / "home").ensure())


def answer(home: Home, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(home.database), read_only=True) as connection:
        return connection.execute(query).fetchall()


def views(home: Home) -> list[str]:
    return [
        row[0] for row in answer(home, "SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY 1")
    ]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_leaves_the_run_and_the_old_catalogue(
    store: RunStore, caplog: pytest.LogCaptureFixture
):
    home = store.home
    store.create_run("a", RunConfig(), {}, os.getpid())
    all_views = views(home)
    assert "samples" in all_views and "costs" in all_views
    (home.runs / "_examples" / "views.sql").unlink()
    with caplog.at_level(logging.WARNING), files_of_at_most(20_000):
        store.create_run("b", RunConfig(), {}, os.getpid())
    assert "no queries with spotlight.duckdb" in caplog.text and "free disk space" in caplog.text
    assert [row.run_id for row in store.runs()] == ["b", "a"]
    assert views(home) == all_views, "the old one stays"
    assert [path.name for path in home.path.glob(".making*")] == []
    home.database.unlink()
    store.create_run("c", RunConfig(), {}, os.getpid())
    assert views(home) == all_views, "the next run makes it"


def test_an_empty_file_that_closing_left_does_not_replace_it(
    store: RunStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """DuckDB does that, silently, where the disk is full to the last blocks."""
    connect = duckdb.connect

    def losing(path: str, **options: Any) -> duckdb.DuckDBPyConnection:
        if options:
            shutil.copyfile(empty, path)
        return connect(path, **options)

    empty = store.home.path / "empty"
    connect(str(empty)).close()
    monkeypatch.setattr(duckdb, "connect", losing)
    refresh_catalogue(store.home)
    assert "views are missing" in caplog.text and not store.home.database.exists()
    monkeypatch.undo()
    refresh_catalogue(store.home)
    assert "samples" in views(store.home)


def test_a_home_that_was_moved_there_and_back_has_views_of_its_own_files(store: RunStore, tmp_path: Path):
    write_sample_run(store, "r", iterations=2)
    for path in (tmp_path / "moved", store.home.path):
        next(tmp_path.glob("*")).rename(path)
        refresh_catalogue(Home(path))
        assert answer(Home(path), "SELECT run_id FROM runs") == [("r",)]


def test_a_torn_example_is_written_again_and_whole_ones_stay(store: RunStore):
    refresh_catalogue(store.home)
    rows = store.home.runs / "_examples" / "part-000000"
    (rows / "samples.parquet").write_bytes(b"")
    kept = (rows / "prompts.parquet").stat().st_ino
    store.home.database.unlink()
    refresh_catalogue(store.home)
    assert answer(store.home, "SELECT count(*) FROM samples") == [(0,)]
    assert (rows / "prompts.parquet").stat().st_ino == kept


def test_what_is_being_written_or_fetched_is_in_no_view(store: RunStore):
    home = store.home
    write_sample_run(store, "r", iterations=2)
    separate = ("separate_evaluations", "separate_evaluation_images", "reproductions")
    tables = ("runs", "samples", "events", *separate)
    before = {table: answer(home, f"SELECT count(*) FROM {table}") for table in tables}
    assert before["samples"] != [(0,)]
    doubled = "SELECT run_id, purpose, prompt_id FROM prompts GROUP BY ALL HAVING count(*) > 1"
    assert answer(home, doubled) == [], "a prompt is there once"
    for name in (".fetching-r", ".before-fetching-r-1"):
        shutil.copytree(home.run("r"), home.runs / name)
    evaluation = home.evaluations / ".saving-e"
    shutil.copytree(home.evaluations / "_examples", evaluation)
    (evaluation / "evaluation.json").write_text(json.dumps({"evaluation_id": "e"}))
    (home.reproductions / ".writing-p.json").write_text(json.dumps({"reproduction_id": "p"}))
    assert {table: answer(home, f"SELECT count(*) FROM {table}") for table in tables} == before


def test_a_copy_of_a_run_under_another_name_counts_for_nothing(store: RunStore):
    tables, runs = ("runs", "samples", "costs", "evaluations"), {"r", ".hidden", "a run of +1 %"}
    for run_id in runs:
        write_sample_run(store, run_id, iterations=2)
    before = {table: answer(store.home, f"SELECT * FROM {table} ORDER BY ALL") for table in tables}
    assert {row[0] for row in before["runs"]} == {row[0] for row in before["samples"]} == runs
    for name in ("backup", "r (copy)"):
        shutil.copytree(store.home.run("r"), store.home.runs / name)
    assert {table: answer(store.home, f"SELECT * FROM {table} ORDER BY ALL") for table in tables} == before


def compacted(store: RunStore) -> None:
    """A run of four iterations, three of them in a part, whose folders are still there."""
    store.create_run("a", RunConfig(), {}, os.getpid())
    for iteration in range(1, 5):
        store.commit_iteration(iteration_record("a", iteration, 18.0 * iteration))
    store.folder("a").compact(before=4, at_least=3)
    assert [
        len(kind) for kind in (store.folder("a").listing().parts, store.folder("a").listing().covered)
    ] == [1, 3]


class Watched(LocalFileSystem):
    """The machine's files under `watched://`; it notes what is looked for."""

    protocol = "watched"
    asked: ClassVar[list[str]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("watched://"))

    def glob(self, path: str, maxdepth: int | None = None, **further: Any) -> Any:
        self.asked.append(Path(path).name)
        return super().glob(path, maxdepth, **further)


def test_a_query_finds_parts_before_rows(store: RunStore):
    """The part that is made after that is left out; found the other way round, its folders would be, too."""
    compacted(store)
    with duckdb.connect(str(store.home.database), read_only=True) as connection:
        views = connection.execute(
            "SELECT sql FROM duckdb_views() WHERE view_name IN ('counted_folders', 'worker_states') "
            "ORDER BY view_name"
        ).fetchall()
    with duckdb.connect() as connection:
        connection.register_filesystem(Watched())
        for (view,) in views:
            connection.execute(view.replace(str(store.home.runs), f"watched://{store.home.runs}"))
        Watched.asked.clear()
        assert connection.execute("SELECT count(DISTINCT iteration) FROM worker_states").fetchall() == [(4,)]
    assert {*Watched.asked} == {"part.json", "worker_states.parquet"}
    assert Watched.asked.index("worker_states.parquet") == Watched.asked.count("part.json")


def test_a_home_of_many_parts_is_queried_in_little_memory(store: RunStore):
    compacted(store)
    (part,) = store.folder("a").listing().parts
    for number in range(20):
        shutil.copytree(part.path, store.home.runs / f"b{number}" / part.path.name)
    with duckdb.connect(str(store.home.database), read_only=True) as connection:
        connection.execute("SET memory_limit = '200MB'")
        assert connection.execute("SELECT count(DISTINCT iteration) FROM worker_states").fetchall() == [(4,)]


def test_a_part_that_was_made_too_late_is_left_out(store: RunStore):
    count = "SELECT count(*), count(DISTINCT iteration) FROM worker_states"
    compacted(store)
    (rows,) = answer(store.home, count)
    assert rows[1] == 4
    (part,) = store.folder("a").listing().parts
    (part.path / "part.json").rename(part.path / "not-yet.json")
    assert answer(store.home, count) == [rows]
