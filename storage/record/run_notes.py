"""Notes about runs: a person's tags, note and archive mark, and links to other pages.

They have a separate file in the run's folder, so that a person can write while the run does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from storage.clock import now
from storage.errors import ConfigurationError, quoted
from storage.home import Home
from storage.record.run_folder import NOTES_FILE, RunFolder
from storage.record.run_store import RunStore

MOST_TAGS = 20
LONGEST_TAG = 40
LONGEST_NOTE = 2000


@dataclass(frozen=True)
class RunNotes:
    """A person's notes about a run: tags in the order given, each once; lists leave archived runs out."""

    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False


class NoteStore:
    """Notes about the runs of a home. Cheap to make; keeps nothing open.

    Every method may raise StorageError: a file of notes is damaged, or the disk refuses. A change raises
    RunNotFoundError if there is no such run.
    """

    def __init__(self, home: Home) -> None:
        self.home = home

    def notes(self) -> dict[str, RunNotes]:
        """Return the notes by run; runs without any are left out."""
        noted = {run_id: RunFolder(self.home.run(run_id)).notes() for run_id in self.home.run_ids()}
        return {run_id: _notes(values) for run_id, values in noted.items() if "notes" in values}

    def notes_of(self, run_id: str) -> RunNotes:
        """Return the notes about one run."""
        return _notes(RunFolder(self.home.run(run_id)).notes())

    def change(
        self,
        run_id: str,
        *,
        tags: Sequence[str] | None = None,
        note: str | None = None,
        archived: bool | None = None,
    ) -> RunNotes:
        """Change the notes about a run. Too many or too long ones are refused.

        Args:
            tags, note, archived: None keeps a value.
        """
        kept = tuple(dict.fromkeys(tag.strip() for tag in tags or () if tag.strip()))
        if too_long := [tag for tag in kept if len(tag) > LONGEST_TAG]:
            raise ConfigurationError(
                f"tag {quoted(too_long[0])} has {len(too_long[0])} characters, at most {LONGEST_TAG} are "
                "kept; shorten it"
            )
        if len(kept) > MOST_TAGS:
            raise ConfigurationError(f"{len(kept)} tags are given, a run has at most {MOST_TAGS}; drop some")
        if note is not None and len(note) > LONGEST_NOTE:
            raise ConfigurationError(
                f"the note has {len(note):,} characters, at most {LONGEST_NOTE:,} are kept; shorten it"
            )
        folder = RunStore(self.home).known(run_id)
        changed = RunNotes()

        def noted(values: dict[str, Any]) -> dict[str, Any]:
            nonlocal changed
            before = _notes(values)
            changed = RunNotes(
                before.tags if tags is None else kept,
                before.note if note is None else note.strip(),
                before.archived if archived is None else archived,
            )
            return values | {"notes": {**asdict(changed), "changed_at": now()}}

        folder.change(NOTES_FILE, noted)
        return changed

    def link(self, run_id: str, place: str, address: str) -> None:
        """Record another page of a run at a place, such as `prefect`, replacing an earlier address."""
        link = {"address": address, "noted_at": now()}
        RunStore(self.home).known(run_id).change(
            NOTES_FILE, lambda values: values | {"links": values.get("links", {}) | {place: link}}
        )

    def links(self, run_id: str) -> dict[str, str]:
        """Return the addresses of other pages of a run, by place."""
        links = RunFolder(self.home.run(run_id)).notes().get("links", {})
        return {place: link["address"] for place, link in links.items()}


def _notes(values: dict[str, Any]) -> RunNotes:
    noted = values.get("notes", {})
    return RunNotes(tuple(noted.get("tags", ())), noted.get("note", ""), noted.get("archived", False))
