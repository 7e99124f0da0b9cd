"""Changes what runs have recorded behind Spotlight's back: other versions' settings, damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from storage.home import Home
from storage.record.run_folder import RUN_FILE
from storage.record.run_store import RunStore


def set_run(store: RunStore, run_id: str, **values: Any) -> None:
    """Write values into a run's run.json, in place of those of the same names."""
    assert store.folder(run_id).change(RUN_FILE, lambda run: run | values)


def row_files(store: RunStore, run_id: str, table: str) -> list[Path]:
    """Return the files that hold a table's rows of a run."""
    return store.folder(run_id).listing().files(table)


def damage(file: Path) -> None:
    """Overwrite what is in a file, as a bad disk does: its length and what stands at its ends stay."""
    content = file.read_bytes()
    begin, end = 8, max(len(content) // 2, 72)
    file.write_bytes(content[:begin] + b"\xa5" * (end - begin) + content[end:])


def make_earlier_home(home: Home) -> None:
    """Write a home as the version before runs had folders left it: one file with all tables."""
    home.path.mkdir(parents=True, exist_ok=True)
    home.database.write_bytes(b"tables of an earlier version" * 1000)
