"""The update of one reader from the record of one run.

Its position is a small file in the run's folder, with a lock beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from storage.clock import now
from storage.errors import StorageError, shortened
from storage.home import Home, dashboard_page
from storage.readers.figures import gallery, last_moment, moments_after
from storage.readers.protocol import Reader, ReadRun
from storage.record.checkpoints import CheckpointStore
from storage.record.files import CHECKPOINT, read_json, write_json
from storage.record.records import RunStatus
from storage.record.run_folder import RunFolder
from storage.record.run_store import RunStore
from storage.text import one_line

REPORT = "report.html"
"""The report of a finished run, in its folder."""


@dataclass
class Position:
    """The position up to which a reader has taken a run.

    Attributes:
        to: destination that it took the run to.
        moment, at: last `Moment.number`, -1 for nothing, and its end in Unix seconds.
        events: number of events taken.
        ended: final status of the run; empty if its end was not taken.
    """

    to: str
    moment: int = -1
    at: float = 0.0
    events: int = 0
    ended: str = ""

    @classmethod
    def read(cls, file: Path, to: str) -> Position:
        """Return the content of a file; the start if it is missing, damaged or for another destination."""
        try:
            found = cls(**read_json(file))
        except (StorageError, TypeError):
            return cls(to)
        return found if found.to == to else cls(to)

    def write(self, file: Path) -> None:
        """Replace the file."""
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_json(file, asdict(self))


def position_file(run: Path, name: str) -> Path:
    """Return the file of a reader's position in a run's folder, by its name in `tracking.to`."""
    return run / "readers" / f"{quote(name, safe='')}.json"


class Follower:
    """A follower that brings one reader up to date with the record of one run.

    Args:
        name: name of the reader in `tracking.to`.
        say: callback with what the reader refused.

    Attributes:
        file, lock: files of its position, and whose lock keeps other processes from sending the run too.
        is_open: True while the reader has the run's copy open; cleared after a failure.
        is_complete: True once it has taken the run's end.
        refused: items that it refused twice, as text.
    """

    def __init__(
        self, home: Home, run_id: str, name: str, reader: Reader, say: Callable[[str], None]
    ) -> None:
        self._home, self._run_id, self._name, self._say = home, run_id, name, say
        self._folder = RunFolder(home.run(run_id))
        self._refused_once = ""
        self.refused: list[str] = []
        self.reader = reader
        self.file = position_file(self._folder.path, name)
        self.lock = self.file.with_suffix(".lock")
        self.is_open = self.is_complete = False
        self.read_position()

    def read_position(self) -> None:
        """Read the recorded position, under the lock, as another process may have moved it."""
        self.position = Position.read(self.file, self.reader.label)

    def catch_up(self, status: RunStatus | None, at: float) -> None:
        """Send the reader the items it lacks; raise whatever prevents it.

        Args:
            status: final status of the run; None while it is running.
            at: end of the run, in Unix seconds.
        """
        while not self._send(status, at):
            self.is_open = False

    def lacking(self) -> str:
        """Return the items the reader lacks, as in `the figures of iterations 3 to 9, the run's end`."""
        try:
            first, last = max(0, self.position.moment) // 2 + 1, self._folder.listing().last_iteration
        except StorageError:
            return "its last figures"
        if last is None or first > last:
            return "the run's end"
        which = f"iteration {first}" if first == last else f"iterations {first} to {last}"
        return f"the figures of {which}, the run's end"

    def _send(self, status: RunStatus | None, at: float) -> bool:
        """Send everything available; return False if something was refused, and must be tried again."""
        reader, position = self.reader, self.position
        with RunStore(self._home).reading(self._run_id) as connection:
            last = last_moment(connection, self._run_id, position.moment, position.at)
            if last < position.moment:
                position.moment, self.is_open = last, False  # the run went back to a checkpoint
            if not self.is_open:
                self._open()
            for moment in moments_after(connection, self._run_id, position.moment):
                number, figures, ended_at = moment.iteration, moment.figures, moment.at
                if moment.is_evaluation:
                    images = gallery(connection, self._run_id, number)
                    what = f"the evaluation after iteration {number}"
                    taken = self._taken(what, reader.evaluation, number, figures, images, ended_at)
                else:
                    taken = self._taken(f"iteration {number}", reader.iteration, number, figures, ended_at)
                if not taken:
                    return False
                position.moment, position.at = moment.number, moment.at
                position.write(self.file)
        for event in self._folder.events()[position.events :]:
            values = event["kind"], event["message"], event["happened_at"]
            is_own = event["kind"] == self._name  # events about this reader
            if not (is_own or self._taken(f"event {event['event_id']}", reader.event, *values)):
                return False
            position.events = event["event_id"]
        position.write(self.file)
        return status is None or self._end(status, at)

    def _end(self, status: RunStatus, at: float) -> bool:
        store = CheckpointStore(self._folder.path)
        newest = store.folder / f"iteration-{max(store.iterations(), default=0):06d}" / CHECKPOINT
        weights = (newest / "weights.safetensors", newest / "average.safetensors")
        for path in (*weights, self._folder.path / REPORT) if status == "finished" else ():
            if path.exists() and not self._taken(path.name, self.reader.artifact, path):
                return False
        if not self._taken("the run's end", self.reader.end, status, at):
            return False
        self.position.ended = status
        self.position.write(self.file)
        self.is_complete = True
        if len(self.refused) > 1:
            self._say(
                f"{self.reader.label} refused {len(self.refused)} things, the last was {self.refused[-1]}; "
                "all figures are in the run's record"
            )
        return True

    def _taken(self, what: str, take: Callable[..., None], *values: Any) -> bool:
        """Have the reader take something; return False if it refused that for the first time."""
        try:
            take(*values)
        except Exception as error:  # of any package that the reader needs
            if self.reader.is_silence(error):
                raise
            if self._refused_once != what:  # when opened again, it may find its copy gone
                self._refused_once = what
                return False
            if not self.refused:
                self._say(
                    f"{self.reader.label} refused {what} ({in_words(error)}); the run continues without it"
                )
            self.refused.append(what)
        return True

    def _open(self) -> None:
        run, position = self._folder.identity(), self.position
        settings = run["config"] if isinstance(run["config"], dict) else {}
        described = ReadRun(
            self._run_id, settings, run["environment"], run["created_at"], dashboard_page(self._run_id)
        )
        begin = self.reader.open(described, position.moment // 2)
        position.ended = ""
        if begin is not None:
            position.moment, position.at = 2 * begin - 1, now()
            position.events = position.events if begin else 0
        position.write(self.file)  # before the copy holds anything
        self.is_open = True


def in_words(error: Exception) -> str:
    """Return the type and first line of an error, short enough for an event."""
    return f"{type(error).__name__}: {shortened(one_line(str(error).partition(chr(10))[0]))}"
