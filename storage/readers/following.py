"""Readers beside a run: each on a thread that a commit wakes, and that neither delays nor fails the run.

A thread reads the record after its reader's position, a small file in the run's folder with a lock beside it,
so a reader may be away: after an outage, a crash or a resume it continues from there. Between commits it
sends what readers lack of the home's earlier runs. A failed reader is reported once, as an event, and tried
again every `RETRY_S` seconds.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from storage.clock import now
from storage.config.tracking import TrackingConfig
from storage.errors import SpotlightError, StorageError, TakenOverError, shortened
from storage.home import Home, dashboard_page
from storage.readers.figures import figure_name, gallery, last_moment, moments_after
from storage.readers.protocol import Reader, ReadRun
from storage.readers.registry import READERS
from storage.record.checkpoints import CheckpointStore
from storage.record.files import CHECKPOINT, locked, read_json, write_json
from storage.record.records import RunStatus
from storage.record.run_store import RunRow, RunStore
from storage.text import one_line

REPORT = "report.html"
"""The report of a finished run, in its folder."""

FLUSH_WAIT_S = 60.0
"""Seconds that the end of a run waits for its readers."""

SILENT_WAIT_S = 3.0
"""Seconds that it waits for a reader that did not answer last time."""

RETRY_S = 15.0
"""Seconds between two tries of a reader that failed."""

EARLIER_WAIT_S = 5.0
"""Seconds for sending earlier runs after the end: a short run has no other time for them."""

MOST_EARLIER = 20
"""The most earlier runs that a reader checks beside one run, the newest first."""

SETTLED_S = 3600.0
"""Seconds after which an ended run of another machine, whose locks may be invisible here, sends no more."""

_log = logging.getLogger(__name__)


class Readers:
    """The readers of a run. No method raises because of a reader, and only `finish` waits for one.

    They send nothing more once another process drives the run, whose own readers continue.

    Args:
        store: store that drives the run.
        tracking: its readers; they differ from the stored settings if a resumed run uses another server.
    """

    def __init__(self, store: RunStore, run_id: str, tracking: TrackingConfig) -> None:
        self._threads = [_ReaderThread(store, run_id, name, tracking) for name in tracking.to]
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Have the readers check the record; the first call starts them, which imports their packages."""
        for thread in self._threads:
            thread.wake.set()

    def finish(self, status: RunStatus, wait_s: float = FLUSH_WAIT_S) -> None:
        """Have the readers take the rest and the run's end, and wait for them.

        A run that was cancelled before readers started is left to a later run of the home.
        """
        began = time.monotonic()
        for thread in self._threads:
            if status != "cancelled" or thread.wake.is_set() or thread.has_begun:
                thread.finish(status)
        for thread in self._threads:
            if thread.ending.is_set():
                limit_s = min(wait_s, SILENT_WAIT_S) if thread.is_away else wait_s
                thread.wait(max(0.0, began + limit_s - time.monotonic()), limit_s)


class _ReaderThread(threading.Thread):
    """One reader beside a run. It is a daemon thread: a crashing process does not wait for it."""

    def __init__(self, store: RunStore, run_id: str, name: str, tracking: TrackingConfig) -> None:
        super().__init__(name=f"reader {name}", daemon=True)
        self._store, self._run_id, self._name, self._tracking = store, run_id, name, tracking
        self._follower = Follower(store, run_id, name, tracking, self._say)
        self._status: RunStatus | None = None
        self._is_linked = self._has_said = False
        self._earlier: list[RunRow] | None = None
        self.wake, self.ending = threading.Event(), threading.Event()
        self.has_begun = self.is_away = False

    def finish(self, status: RunStatus) -> None:
        self._status = status
        self.ending.set()
        self.wake.set()

    def wait(self, left_s: float, limit_s: float) -> None:
        """Wait for its end, and report any missing items."""
        self.join(left_s)
        if self.is_alive() and not self._follower.is_complete:
            self._say_lacking(f"did not take everything within {limit_s:g} s")

    def run(self) -> None:
        """Take commits until the run ends."""
        self.wake.wait()
        self.has_begun = True
        try:
            with locked(self._follower.lock):
                self._follower.read_position()
                self._follow()
        except TakenOverError:
            pass  # the run's new process has readers, and they wait for this lock
        except OSError as error:
            self._say(f"{self._label} gets nothing of this run ({in_words(error)})")

    @property
    def _label(self) -> str:
        return self._follower.reader.label

    def _follow(self) -> None:
        while True:
            self.wake.clear()
            ends = self.ending.is_set()
            self._catch_up(self._status if ends else None)
            if ends:
                break
            if self.is_away:
                self.ending.wait(RETRY_S)
            else:
                self._send_earlier(self.wake.is_set)
                self.wake.wait()
        if self.is_away:
            self._say_lacking("was away")
        elif self._status != "cancelled":
            until = time.monotonic() + EARLIER_WAIT_S
            self._send_earlier(lambda: time.monotonic() > until)

    def _catch_up(self, status: RunStatus | None) -> None:
        follower = self._follower
        try:
            follower.catch_up(status, now())
        except TakenOverError:
            raise
        except Exception as error:  # noqa: BLE001 - of any package the reader needs
            follower.is_open = False
            text = f"{self._label} failed ({in_words(error)})"
            if self.is_away:
                _log.debug(text)
                return
            self.is_away = True
            self._say(f"{text}; the run continues, and missing data is sent later")
            return
        if self.is_away:
            self.is_away = False
            self._say(f"{self._label} answers again; the missing data was sent")
        if follower.reader.page and not self._is_linked:
            self._is_linked = True
            self._note(self._store.link, follower.reader.page)

    def _send_earlier(self, is_over: Callable[[], bool]) -> None:
        """Send what the reader lacks of earlier runs, one after another."""
        try:
            if self._earlier is None:
                self._earlier = _behind(self._store, self._name, self._tracking, self._label)
        except SpotlightError as error:
            self._earlier = []
            self._say(f"{self._label} lacks the figures of earlier runs: {error}")
        while self._earlier and not is_over():
            row = self._earlier.pop(0)
            follower = Follower(self._store, row.run_id, self._name, self._tracking, self._say)
            try:
                with locked(follower.lock, wait=False) as is_ours:
                    if is_ours:
                        follower.read_position()
                        follower.catch_up(row.status, row.ended_at or now())
            except Exception as error:  # noqa: BLE001 - of any package the reader needs
                self._say(f"{self._label} lacks figures of the earlier run {row.run_id} ({in_words(error)})")

    def _say_lacking(self, why: str) -> None:
        if self._has_said:
            return
        self._has_said = True
        # No warning for a person who has stopped the run.
        level = logging.DEBUG if self._status == "cancelled" else logging.WARNING
        self._say(
            f"{self._label} {why} and lacks {self._follower.lacking()}; all figures are in the run's record, "
            "and the next run of the home sends them",
            level,
        )

    def _say(self, message: str, level: int = logging.WARNING) -> None:
        _log.log(level, message)
        self._note(self._store.add_event, message)

    def _note(self, write: Callable[[str, str, str], None], text: str) -> None:
        try:
            write(self._run_id, self._name, text)
        except SpotlightError as error:
            _log.warning("could not note this of reader %s: %s", self._name, error)


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
        self, store: RunStore, run_id: str, name: str, tracking: TrackingConfig, say: Callable[[str], None]
    ) -> None:
        self._store, self._run_id, self._name, self._say = store, run_id, name, say
        self._folder = store.folder(run_id)
        self._refused_once = ""
        self.refused: list[str] = []
        self.reader = READERS.find(name).build(store.home, tracking)
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
        with self._store.reading(self._run_id) as connection:
            last = last_moment(connection, self._run_id, position.moment, position.at)
            if last < position.moment:
                position.moment, self.is_open = last, False  # the run went back to a checkpoint
            if not self.is_open:
                self._open()
            for moment in moments_after(connection, self._run_id, position.moment):
                number, is_evaluation = divmod(moment.number, 2)
                figures, ended_at = moment.figures, moment.at
                if is_evaluation:
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
        self._folder.refuse_if_taken_over()
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
        self._folder.refuse_if_taken_over()
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


def send_evaluation(
    home: Home, tracking: TrackingConfig, run: ReadRun, number: int, figures: Mapping[str, float], at: float
) -> None:
    """Have each reader take an evaluation by `spotlight evaluate` as a separate run; a failure is a warning.

    Args:
        number: iteration of the checkpoint.
        figures: figures, by the names of a run's own evaluations.
        at: end of the evaluation, in Unix seconds.
    """
    named = {figure_name(name): value for name, value in figures.items()}

    def send(reader: Reader) -> None:
        try:
            reader.open(run, -1)
            reader.evaluation(number, named, {}, at)
            reader.end("finished", at)
        except Exception as error:  # noqa: BLE001 - of any package the reader needs
            _log.warning("%s lacks evaluation %s (%s)", reader.label, run.run_id, in_words(error))

    until = time.monotonic() + FLUSH_WAIT_S
    readers = [READERS.find(name).build(home, tracking) for name in tracking.to]
    threads = [threading.Thread(target=send, args=(reader,), daemon=True) for reader in readers]
    for thread in threads:
        thread.start()
    for thread, reader in zip(threads, readers, strict=True):
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            _log.warning("%s did not take evaluation %s in %g s", reader.label, run.run_id, FLUSH_WAIT_S)


def _behind(store: RunStore, name: str, tracking: TrackingConfig, label: str) -> list[RunRow]:
    """Return ended runs of the same server that a reader has not taken completely, the newest first."""
    found = []
    for row in store.runs():
        is_over = row.host == socket.gethostname() or now() > (row.ended_at or 0.0) + SETTLED_S
        if row.status in ("running", "simulated") or not is_over:
            continue
        settings: Any = row.settings  # perhaps of another version
        given = settings.get("tracking") if isinstance(settings, dict) else None
        given = given if isinstance(given, dict) else {}
        if name in given.get("to", [name]) and given.get("uri", "") == tracking.uri:
            taken = Position.read(position_file(store.home.run(row.run_id), name), label)
            found += [row] if taken.ended != row.status else []
    return found[:MOST_EARLIER]


def in_words(error: Exception) -> str:
    """Return the type and first line of an error, short enough for an event."""
    return f"{type(error).__name__}: {shortened(one_line(str(error).partition(chr(10))[0]))}"
