"""A run's folder after kills at chosen moments, which random ones seldom meet."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.config.run_config import RunConfig
from storage.errors import StorageError
from storage.record.checkpoints import CheckpointStore
from storage.record.files import PART_FILE, RowFolder, is_whole, merge_rows
from storage.record.records import IterationRecord, PaidTime
from storage.record.run_folder import EVENTS_FILE
from storage.record.run_store import RunStore
from storage.record.tables import iteration_rows, schema, tables_of
from tests.sample_run import evaluation_record
from tests.tampering import set_run

pytestmark = pytest.mark.usefixtures("run_r")


def record(iteration: int, life: float = 0.0) -> IterationRecord:
    paid = [PaidTime("spot-0", "spot", 1.0)]
    return IterationRecord("r", iteration, iteration, 0.0, 1.0, {"life": life}, paid_time=paid)


def commit(store: RunStore, first: int, last: int, life: float = 0.0) -> None:
    for iteration in range(first, last + 1):
        store.commit_iteration(record(iteration, life))


def save(store: RunStore, iteration: int) -> CheckpointStore:
    checkpoints = CheckpointStore(store.folder("r").path)
    rows = iteration_rows(record(iteration))
    checkpoints.save(iteration, {"weights": b"%d" % iteration}, {}, rows)
    return checkpoints


def lives(store: RunStore, run_id: str = "r") -> dict[int, float]:
    with store.reading(run_id) as connection:
        rows = connection.execute("SELECT iteration, value FROM iteration_metrics").fetchall()
    assert len(dict(rows)) == len(rows), "no iteration twice"
    return dict(rows)


def paid(store: RunStore) -> dict[str, float]:
    with store.reading("r") as connection:
        return dict(connection.execute("SELECT phase, sum(paid_s) FROM paid_time GROUP BY ALL").fetchall())


def test_what_a_covered_part_held_may_be_done_again(store: RunStore):
    commit(store, 1, 3)
    store.folder("r").compact(at_least=1)
    commit(store, 4, 5)
    store.folder("r").compact(at_least=1)  # the second part takes in the first, which is still there
    store.discard_after("r", 1)
    commit(store, 2, 4, life=1.0)
    assert lives(store) == {1: 0.0, 2: 1.0, 3: 1.0, 4: 1.0}
    store.folder("r").sweep(stay_s=-1)
    assert lives(store) == {1: 0.0, 2: 1.0, 3: 1.0, 4: 1.0}
    assert paid(store) == {"iteration": 4.0, "discarded": 4.0}


@pytest.mark.parametrize("kept", [-1, 0])
def test_a_run_that_begins_again_has_none_of_its_parts(store: RunStore, kept: int):
    commit(store, 1, 3)
    store.folder("r").compact(at_least=1)
    commit(store, 4, 4)
    store.folder("r").compact(at_least=1)
    store.discard_after("r", kept)
    assert lives(store) == {}
    assert paid(store) == {"discarded": 4.0}
    assert store.run("r").last_iteration is None


def test_what_a_call_has_written_is_on_disk_when_it_returns(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    synced, fsync, run = dict[str, int](), os.fsync, store.folder("r").path

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced[path.name] = path.stat().st_size * path.is_file()

    monkeypatch.setattr(os, "fsync", watched)
    save(store, 1)
    files = {path.name: path.stat().st_size for path in run.glob("iteration-*/**/*") if path.is_file()}
    assert len(files) > 3
    assert synced == files | dict.fromkeys(("checkpoint", ".saving-iteration-000001", "r"), 0)
    for change, names in (
        (lambda: store.add_event("r", "note", "x"), {"events.jsonl"}),
        (lambda: store.set_status("r", "failed"), {".writing-run.json", "r"}),
        (lambda: store.discard_after("r", 0), {"r"}),
    ):
        synced.clear()
        change()
        assert synced.keys() == names


def test_only_rows_to_which_a_run_cannot_return_are_compacted(store: RunStore):
    folder = store.folder("r")
    commit(store, 1, 3)
    store.discard_after("r", 1)
    commit(store, 2, 4)
    folder.compact(before=4, at_least=4)
    assert folder.listing().parts == []
    folder.compact(before=4, at_least=3)
    listing = folder.listing()
    left = ["iteration-000004", "discarded-0001-iteration-000002", "discarded-0001-iteration-000003"]
    assert [one.name for one in listing.folders] == left
    assert {one.number for one in listing.covered} == {1, 2, 3}, "a query may still read them"
    folder.compact(at_least=3)
    listing = folder.listing()
    assert ([one.name for one in listing.parts], listing.folders) == (["part-000002"], [])
    assert (listing.last_iteration, listing.discardings) == (4, 1)
    assert lives(store).keys() == {1, 2, 3, 4}
    store.discard_after("r", 3)
    assert lives(store).keys() == {1, 2, 3} and store.run("r").last_iteration == 3


def test_many_small_parts_become_one(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("storage.record.run_folder.COMPACTED_AT", 2)
    folder, found = store.folder("r"), []
    commit(store, 1, 4)
    for before in (2, 3, 4):
        folder.compact(before, at_least=1)
        found.append([part.number for part in folder.listing().parts])
    assert found == [[1], [1, 2], [3]]
    assert lives(store).keys() == {1, 2, 3, 4}


def test_a_part_that_a_killed_sweep_half_deleted_blocks_nothing(store: RunStore):
    commit(store, 1, 3)
    store.folder("r").compact(at_least=1)
    commit(store, 4, 5)
    store.folder("r").compact(at_least=1)
    (store.folder("r").path / "part-000001" / PART_FILE).unlink()
    assert sorted(lives(store)) == [1, 2, 3, 4, 5]
    assert store.run("r").last_iteration == 5


def test_the_only_copy_of_a_folder_is_kept_and_gets_its_name_back(store: RunStore):
    commit(store, 1, 3)
    moved = store.folder("r").path / ".replaced-iteration-000003"
    (store.folder("r").path / "iteration-000003").rename(moved)  # killed between the two renames
    store.folder("r").sweep(stay_s=-1)
    assert sorted(lives(store)) == [1, 2, 3]
    store.discard_after("r", 3)
    assert not moved.exists()
    assert sorted(lives(store)) == [1, 2, 3]


def test_a_copy_that_was_replaced_does_not_come_back(store: RunStore):
    commit(store, 1, 3)
    run = store.folder("r").path
    shutil.copytree(run / "iteration-000003", run / ".replaced-iteration-000003")  # killed before it went
    assert sorted(lives(store)) == [1, 2, 3]
    store.discard_after("r", 2)
    assert sorted(lives(store)) == [1, 2]
    assert paid(store) == {"iteration": 2.0, "discarded": 1.0}


def test_a_large_file_is_checked_with_little_memory(store: RunStore):
    commit(store, 1, 1)
    path = store.folder("r").path / "iteration-000001" / "sample_images.parquet"
    columns, mebibyte = schema("sample_images"), 1 << 20
    with pq.ParquetWriter(path, columns) as writer:
        for seed in range(32):
            image = {"run_id": "r", "iteration": 1, "prompt_id": 0, "seed_index": seed}
            writer.write_table(pa.Table.from_pylist([image | {"png": os.urandom(mebibyte)}], columns))
    program = (
        "import os, pathlib, sys, pyarrow; from storage.record.run_folder import RunFolder; "
        "pool = pyarrow.proxy_memory_pool(pyarrow.default_memory_pool()); pyarrow.set_memory_pool(pool); "
        "print(RunFolder(pathlib.Path(sys.argv[1])).damaged(), pool.max_memory(), flush=True); os._exit(0)"
    )
    command = [sys.executable, "-c", program, str(store.folder("r").path)]
    damaged, peak = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    assert damaged == "[]" and mebibyte <= int(peak) < 8 * mebibyte


def test_compaction_leaves_a_damaged_folder_as_it_is_and_ends_no_run(store: RunStore):
    commit(store, 1, 5)
    damaged = store.folder("r").path / "iteration-000002" / "paid_time.parquet"
    damaged.write_bytes(b"PAR1" + b"x" * 50)
    store.compact("r")
    assert damaged.exists()
    assert sorted(lives(store)) == [1, 2, 3, 4, 5]
    (store.folder("r").path / "part-000001" / PART_FILE).write_text("{}")
    with pytest.raises(StorageError, match="does not describe a part"):
        store.folder("r").listing()


def test_a_query_that_meets_the_deletion_of_merged_folders_is_asked_again(store: RunStore):
    commit(store, 1, 3)
    with store.reading("r") as connection:
        connection.execute("SELECT count(*) FROM iterations")
        store.folder("r").compact(at_least=1)
        store.folder("r").sweep(stay_s=-1)
        rows = connection.execute("SELECT iteration FROM iterations ORDER BY 1").fetchall()
    assert (rows, connection.damaged) == ([(1,), (2,), (3,)], [])


def test_files_that_are_renamed_while_others_are_checked_are_no_damaged_ones(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
):
    def checked(path: Path) -> bool:
        if path.parent.name == "iteration-000002":
            store.discard_after("r", 1)
        return is_whole(path)

    commit(store, 1, 3)
    monkeypatch.setattr("storage.record.reading.is_whole", checked)
    with store.reading("r") as connection:
        connection.execute("SELECT count(*) FROM paid_time")
        store.discard_after("r", 2)
        found = connection.execute("SELECT iteration, phase FROM paid_time ORDER BY 1").fetchall()
    assert found == [(1, "iteration"), (2, "discarded"), (3, "discarded")]
    assert connection.damaged == []


def test_a_file_that_the_disk_cannot_find_is_left_out_as_damaged(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
):
    commit(store, 1, 3)
    bad = store.folder("r").path / "iteration-000002" / "paid_time.parquet"
    bad.write_bytes(b"torn")
    look = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        if path == bad:
            raise OSError(errno.EIO, "Input/output error")
        return look(path)

    monkeypatch.setattr(Path, "lstat", lstat)
    with store.reading("r") as connection:
        found = connection.execute("SELECT iteration FROM paid_time ORDER BY 1").fetchall()
    assert (found, connection.damaged) == ([(1,), (3,)], [bad])


def test_texts_that_are_no_utf_8_are_kept_readable(store: RunStore):
    store.add_event("r", "failed", "no file \udcff.png")
    store.set_status("r", "failed", "no file \udcff.png")
    with store.reading("r") as connection:
        assert connection.execute("SELECT message FROM events").fetchall() == [("no file ?.png",)]
    assert store.run("r").error == "no file ?.png"


def test_an_event_counts_once_whether_or_not_its_newline_was_written(store: RunStore):
    folder = store.folder("r")
    store.add_event("r", "first", "whole")
    store.add_event("r", "second", "without its newline")
    log = folder.path / EVENTS_FILE
    log.write_bytes(log.read_bytes().removesuffix(b"\n"))
    kinds = [event["kind"] for event in folder.events()]
    assert kinds == ["first", "second"]
    lines, position = folder.lines()
    assert len(lines) == 2
    assert folder.lines(-9_000) == (lines, position), "of fewer bytes than are asked for, all"
    assert folder.lines(-len(log.read_bytes().splitlines()[-1]) - 9) == (lines[1:], position)
    store.add_event("r", "third", "whole")
    assert [line["kind"] for line in folder.lines(position)[0]] == ["third"]
    assert [event["event_id"] for event in folder.events()] == [1, 2, 3]
    log.write_bytes(log.read_bytes()[:-2])
    assert len(folder.events()) == 2, "half a line is none"


def test_rows_that_lack_a_column_are_refused_by_name():
    with pytest.raises(StorageError, match="a row of step_times lacks the column 'chunks'"):
        tables_of(
            {"step_times": [{"degree": 1, "request_class": "", "step_s": 1.0}]},
            run_id="r",
            phase="",
            iteration=1,
        )


def test_a_checkpoint_outlives_the_files_whose_rows_a_part_holds(store: RunStore):
    commit(store, 1, 3)
    checkpoints = save(store, 4)
    store.compact("r")
    store.folder("r").sweep(stay_s=-1)
    assert [path.name for path in store.folder("r").path.glob("iteration-*")] == ["iteration-000004"]
    assert not list(store.folder("r").path.glob("iteration-*/*.parquet"))
    assert checkpoints.load(4).blobs == {"weights": b"4"}
    assert lives(store) == {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0}
    save(store, 5)
    assert checkpoints.iterations() == [4, 5] and len(lives(store)) == 5
    store.discard_after("r", 4)
    assert checkpoints.iterations() == [4] and len(lives(store)) == 4
    store.discard_after("r", 3)
    assert checkpoints.iterations() == [] and len(lives(store)) == 3
    assert store.run("r").last_iteration == 3


def test_going_back_before_a_sweep_counts_no_row_twice(store: RunStore):
    commit(store, 1, 1)
    for iteration in (2, 3):
        checkpoints = save(store, iteration)
    store.compact("r")
    store.discard_after("r", 2)
    assert checkpoints.iterations() == [2] and len(lives(store)) == 2
    save(store, 3)
    assert checkpoints.iterations() == [2, 3] and len(lives(store)) == 3
    save(store, 4)
    assert checkpoints.iterations() == [3, 4] and len(lives(store)) == 4, "too old a checkpoint goes alone"


@pytest.mark.parametrize("compacted", [False, True])
def test_an_evaluation_is_written_whatever_parts_there_are(store: RunStore, compacted: bool):
    commit(store, 1, 4)
    if compacted:
        store.compact("r")
    for iteration in (0, 4):
        store.commit_evaluation(evaluation_record("r", iteration, 0.0, images=2, gallery=0))
    with store.reading("r") as connection:
        rows = connection.execute("SELECT iteration FROM evaluations ORDER BY iteration").fetchall()
    assert rows == [(0,), (4,)]


@pytest.mark.parametrize("changed", [{"pid": 1}, {"host": "elsewhere"}, {"process_started_at": 1.0}, {}])
def test_a_run_that_is_taken_up_while_it_is_found_dead_goes_on(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, changed: dict[str, object]
):
    """Also by a process that has the dead one's number."""

    def found_dead(*_: object) -> bool:
        set_run(store, "r", **changed)
        return False

    monkeypatch.setattr("storage.record.run_store.may_be_alive", found_dead)
    assert store.reconcile() == ([] if changed else ["r"])
    assert store.run("r").status == ("running" if changed else "interrupted")


def test_rows_that_a_part_holds_go_with_a_later_start(store: RunStore):
    store.create_run("going-on", RunConfig(), {}, os.getpid())
    for run_id in ("r", "going-on"):
        for iteration in (1, 2, 3):
            store.commit_iteration(dataclasses.replace(record(iteration), run_id=run_id))
        store.folder(run_id).compact(at_least=2)
        os.utime(store.folder(run_id).path / "part-000001", (0, 0))  # long ago, as far as the disk knows
    store.set_status("r", "finished")
    store.sweep_ended()
    assert list(store.folder("r").path.glob("iteration-*")) == []
    assert len(list(store.folder("going-on").path.glob("iteration-*"))) == 3, "its driver sweeps"
    assert [len(lives(store, run_id)) for run_id in ("r", "going-on")] == [3, 3], "each row counts once"


def test_a_large_part_is_taken_in_a_few_rows_at_a_time(store: RunStore, tmp_path: Path):
    """A run of 10,000 iterations has parts of a million rows, which are not to be in memory at once."""
    # As of a version without the first column, with another one, and with another type of a third.
    rows = pa.table({"iteration": range(200_000), "value": pa.array([0.5] * 200_000, pa.float32())})
    rows = rows.append_column("name", pa.array(["loss"] * 200_000)).append_column("more", rows["value"])
    folder = RowFolder(tmp_path, "part-000001", 0, "part", 1)
    pq.write_table(rows, tmp_path / "iteration_metrics.parquet")
    merged = tmp_path / "merged"
    with merged.open("wb") as file:
        merge_rows("iteration_metrics", [folder, folder], file)
    found = pq.read_table(merged)
    assert found.schema.equals(schema("iteration_metrics"))
    assert found["iteration"].to_pylist() == [*range(200_000)] * 2
    assert {*found["value"].to_pylist()} == {0.5} and {*found["name"].to_pylist()} == {"loss"}
    assert found.column(0).null_count == found.num_rows == 400_000
    facts = pq.read_metadata(merged)
    assert max(facts.row_group(i).num_rows for i in range(facts.num_row_groups)) < rows.num_rows
