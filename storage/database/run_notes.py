"""What is noted about runs beside their figures: a person's tags, note and archive, and links to other pages.

Written in a transaction of its own, so it works while a run writes; kept in the run's journal too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb

from storage.clock import now
from storage.database.database import LOCK_WAIT_S, Database
from storage.database.journal import EntryKind, Journal, journal_line
from storage.errors import ConfigurationError, RunNotFoundError, quoted
from storage.home import Home

MOST_TAGS = 20
LONGEST_TAG = 40
LONGEST_NOTE = 2000


@dataclass(frozen=True)
class RunNotes:
    """What a person has noted about a run.

    Attributes:
        tags: in the order given, each once.
        archived: left out of lists, unless asked for.
    """

    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False


class NoteStore:
    """Notes about the runs of a home. Cheap to make; keeps no connection open.

    Args:
        home: where the database lies.
        wait_s: how long to wait for the database's lock, in seconds.

    Every method may raise StorageError: the database stayed locked, or is of another version.
    """

    def __init__(self, home: Home, wait_s: float = LOCK_WAIT_S) -> None:
        self.home = home
        self.database = Database(home.database, wait_s)

    def notes(self) -> dict[str, RunNotes]:
        """The notes by run; runs without any are left out."""
        with self.database.reading() as connection:
            return read_notes(connection)

    def change(
        self,
        run_id: str,
        *,
        tags: Sequence[str] | None = None,
        note: str | None = None,
        archived: bool | None = None,
    ) -> RunNotes:
        """Change what is noted about a run; what is None stays.

        Args:
            run_id: the run.
            tags: in place of the present ones.
            note: in place of the present one.
            archived: whether lists leave it out.

        Raises:
            RunNotFoundError: there is no such run.
            ConfigurationError: a tag or the note is too long, or there are too many tags.
        """
        kept = None if tags is None else _checked_tags(tags)
        if note is not None and len(note) > LONGEST_NOTE:
            raise ConfigurationError(
                f"the note has {len(note):,} characters, at most {LONGEST_NOTE:,} are kept; shorten it"
            )
        with self.database.writing() as connection:
            _require(connection, run_id)
            notes = read_notes(connection).get(run_id, RunNotes())
            notes = replace(
                notes,
                tags=notes.tags if kept is None else kept,
                note=notes.note if note is None else note.strip(),
                archived=notes.archived if archived is None else archived,
            )
            values = {
                "run_id": run_id, "tags": json.dumps(notes.tags), "note": notes.note,
                "archived": notes.archived, "changed_at": now(),
            }  # fmt: skip
            connection.execute(
                "INSERT OR REPLACE INTO run_notes VALUES (?, ?, ?, ?, ?)", list(values.values())
            )
            self._journal(run_id, "notes", values)
        return notes

    def link(self, run_id: str, place: str, address: str) -> None:
        """Note where else a run can be looked at; in place of an earlier address.

        Args:
            run_id: the run.
            place: what is there, such as `prefect`.
            address: of the page.

        Raises:
            RunNotFoundError: there is no such run.
        """
        with self.database.writing() as connection:
            _require(connection, run_id)
            values = {"run_id": run_id, "place": place, "address": address, "noted_at": now()}
            connection.execute("INSERT OR REPLACE INTO run_links VALUES (?, ?, ?, ?)", list(values.values()))
            self._journal(run_id, "link", values)

    def _journal(self, run_id: str, kind: EntryKind, values: dict[str, Any]) -> None:
        journal = Journal(self.home.journal(run_id))
        if journal.size_bytes:  # of a run from before the journal it would hold nothing else
            journal.append(journal_line(kind, values))


def read_notes(connection: duckdb.DuckDBPyConnection) -> dict[str, RunNotes]:
    """The notes by run, from an open connection."""
    rows = connection.execute("SELECT run_id, tags, note, archived FROM run_notes").fetchall()
    return {
        run_id: RunNotes(tuple(json.loads(tags)), note, archived) for run_id, tags, note, archived in rows
    }


def read_links(connection: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, str]:
    """Where else a run can be looked at: place -> address."""
    rows = connection.execute("SELECT place, address FROM run_links WHERE run_id = ?", [run_id]).fetchall()
    return dict(rows)


def _checked_tags(tags: Sequence[str]) -> tuple[str, ...]:
    kept = tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    too_long = [tag for tag in kept if len(tag) > LONGEST_TAG]
    if too_long:
        raise ConfigurationError(
            f"tag {quoted(too_long[0])} has {len(too_long[0])} characters, at most {LONGEST_TAG} are kept; "
            "shorten it"
        )
    if len(kept) > MOST_TAGS:
        raise ConfigurationError(f"{len(kept)} tags are given, a run has at most {MOST_TAGS}; drop some")
    return kept


def _require(connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    if not connection.execute("SELECT 1 FROM runs WHERE run_id = ?", [run_id]).fetchone():
        raise RunNotFoundError(f"no run {quoted(run_id)}; `spotlight runs` lists those that there are")
