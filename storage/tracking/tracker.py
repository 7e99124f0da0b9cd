"""MLflow beside the run: a second place to compare runs in, never one that a run depends on.

All calls go to MLflow from one thread with a queue, so training waits for none of them. The first one takes
seconds, of MLflow's import and its tables: it comes after the first iteration, so as not to slow the start
down. A failure is logged, becomes an event through `on_trouble`, and the
run goes on: every figure is in DuckDB too, and hours of GPU time are worth more than this copy. What a server
that is away does not take is kept and sent when it answers again; at the run's end a warning says what it
lacks.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from storage.clock import now
from storage.config.run_config import RunConfig
from storage.errors import SpotlightError, shortened
from storage.home import Home
from storage.record.records import RunStatus
from storage.text import one_line
from storage.tracking.backlog import Backlog
from storage.tracking.mlflow_run import MlflowRun, failures, flat_settings, is_silence, tags_of

FLUSH_WAIT_S = 60.0
"""How long `close` waits for what is still queued."""

SILENT_WAIT_S = 3.0
"""How long `close` waits where the server did not answer last."""

RETRY_S = 15.0
"""Between two tries at a server that does not answer."""

BACKLOG_WAIT_S = 5.0
"""How long `close` waits for earlier runs, after this one: a short run has no other time for them."""

_EARLIER = "the figures of earlier runs"

_ENVIRONMENT = {
    # MLflow itself would try for minutes, and the thread could not end meanwhile.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Read by MLflow on the tracker's thread; what a person has set is left."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Job:
    """Something for MLflow.

    Attributes:
        do: does it.
        what: it in words, for the warning that it is missing; empty for figures.
        iteration: of figures; they are kept while a server is away.
        kept: whether it is, too.
        goes_on: whether it is queued again once it is done, or MLflow has refused it.
    """

    do: Callable[[MlflowRun], None]
    what: str = ""
    iteration: int | None = None
    kept: bool = True
    goes_on: Callable[[], bool] = lambda: False


class Tracker:
    """Copies a run's figures to MLflow, in the background. No method raises for MLflow's sake.

    Args:
        home: where MLflow's store and artifacts lie, unless the run's settings name a server.
        on_trouble: told, on the tracker's thread, when MLflow fails, when it answers again, and what it
            lacks at the end; to make it an event.
        on_page: called on the tracker's thread with the address of the run's page, where a server shows it.
    """

    def __init__(
        self,
        home: Home,
        on_trouble: Callable[[str], None] | None = None,
        on_page: Callable[[str], None] | None = None,
    ) -> None:
        self.home = home
        self._on_trouble = on_trouble
        self._on_page = on_page
        self._reported = False
        self._silent = False
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._waiting: list[_Job] = []
        self._missing: list[_Job] = []
        self._server = ""
        self._closing = False
        self._backlog: Backlog | None = None
        self._thread: threading.Thread | None = None
        self._needed = threading.Event()
        """Set once there is more to copy than the start of a run."""

    def start(
        self,
        run_id: str,
        config: RunConfig,
        environment: Mapping[str, str],
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Begin: MLflow's run of this `run_id` is created, or opened again where there is one.

        Args:
            run_id: our run, or evaluation.
            config: its settings, which also say where MLflow is.
            environment: what is stored with it, for the tags of its commit and preset.
            tags: further ones.
        """
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self._server = config.tracking.uri
        params = flat_settings(config.model_dump(mode="json"))
        target = MlflowRun(
            self._server or self.home.mlflow_uri,
            None if self._server else self.home.artifacts,
            run_id,
            params,
            tags_of(params, environment) | dict(tags or {}),
        )
        self.home.ensure()
        # A daemon, so that a training process that crashes does not stay for MLflow's sake.
        self._thread = threading.Thread(target=self._work, args=(target,), name="mlflow", daemon=True)
        self._thread.start()
        self._put(_Job(MlflowRun.open))

    def catch_up(self) -> None:
        """Queue what MLflow lacks of this run up to now, and of earlier runs of the home; see `Backlog`."""
        backlog = self._backlog = Backlog(self.home, self._server, now())
        self._put(
            _Job(
                lambda run: None if self._closing else backlog.send_next(run),
                _EARLIER,
                goes_on=lambda: not self._closing and backlog.has_more(),
            )
        )

    def metrics(self, iteration: int, values: Mapping[str, float]) -> None:
        """Queue an iteration's figures; they are written in one batch."""
        at_ms = int(now() * 1000)
        figures = dict(values)  # a copy: the caller may go on filling its own
        self._put(_Job(lambda run: run.log_metrics(iteration, figures, at_ms), iteration=iteration))
        if iteration > 0:
            self._needed.set()

    def images(self, iteration: int, pictures: Mapping[str, Callable[[], bytes]]) -> None:
        """Queue pictures by name; `pictures` makes each PNG, on the tracker's thread."""
        at_ms = int(now() * 1000)

        def log(run: MlflowRun) -> None:
            run.log_images(iteration, {name: made() for name, made in pictures.items()}, at_ms)

        self._put(_Job(log, f"the images after iteration {iteration}", kept=False))

    def artifact(self, path: Path) -> None:
        """Queue a copy of a file or folder; it must stay until `close`."""
        self._put(_Job(lambda run: run.log_artifact(path), path.name, kept=False))

    def made_artifact(self, name: str, make: Callable[[Path], object]) -> None:
        """Queue a file that `make` writes to the path that it is given, on the tracker's thread."""

        def log(run: MlflowRun) -> None:
            with TemporaryDirectory(dir=self.home.logs) as folder:
                file = Path(folder) / name
                make(file)
                run.log_artifact(file)

        self._put(_Job(log, name, kept=False))

    def end(self, status: RunStatus) -> None:
        """Queue the mark of the run's end; artifacts may follow it."""
        self._put(_Job(lambda run: run.end(status), "the run's end"))

    def finish(self, status: RunStatus, wait_s: float = FLUSH_WAIT_S) -> None:
        """Mark the run's end, and close.

        Of a run that was cancelled before its first iteration was done MLflow gets nothing.
        """
        if status == "cancelled" and not self._needed.is_set():
            return
        self.end(status)
        # A person who has stopped the run does not wait for MLflow, and need not be warned of it.
        self.close(wait_s, logging.DEBUG if status == "cancelled" else logging.WARNING)

    def close(self, wait_s: float = FLUSH_WAIT_S, level: int = logging.WARNING) -> None:
        """Write what is queued, and stop the thread; without `start`, nothing.

        Args:
            wait_s: at most.
            level: of the log's line if that was too short.
        """
        if self._thread is None:
            return
        self._needed.set()
        self._closing = True
        backlog = self._backlog
        if backlog is not None and wait_s >= FLUSH_WAIT_S:
            self._jobs.put(_Job(lambda run: backlog.send_within(run, BACKLOG_WAIT_S), _EARLIER))
        self._jobs.put(None)
        wait_s = min(wait_s, SILENT_WAIT_S) if self._silent else wait_s
        self._thread.join(wait_s)
        if self._thread.is_alive():
            self._keep_queued()  # what it has not even looked at
            self._jobs.put(None)
            self._say_missing(f"did not take everything within {wait_s:g} s", level)
        self._thread = None

    def _put(self, job: _Job) -> None:
        if self._thread is not None and self._thread.is_alive():  # else it would never be taken
            self._jobs.put(job)

    def _work(self, target: MlflowRun) -> None:
        self._needed.wait()
        try:
            failed = failures()
        except ImportError as error:
            self._trouble(f"MLflow cannot be imported ({error}); its figures are in DuckDB only")
            return
        last_try = 0.0
        while True:
            ending = self._take(last_try)
            if ending or not self._silent or time.monotonic() >= last_try + RETRY_S:
                last_try = time.monotonic()
                self._send(target, failed)
            if ending:
                break
        if self._waiting or self._missing:
            self._say_missing("was away")

    def _take(self, last_try: float) -> bool:
        """Wait for jobs, or for the next try at a silent server; whether the end is among them."""
        limit_s = max(0.01, last_try + RETRY_S - time.monotonic()) if self._silent else None
        try:
            first = self._jobs.get(timeout=limit_s)
        except queue.Empty:
            return False
        return first is None or self._keep_queued(first)

    def _keep_queued(self, job: _Job | None = None) -> bool:
        """Put a job and the queued ones where they wait to be done; whether the end is among them."""
        while True:
            if job is not None:
                # Figures of an iteration are a few kilobytes, images are not.
                (self._missing if self._silent and not job.kept else self._waiting).append(job)
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return False
            if job is None:
                return True

    def _send(self, target: MlflowRun, failed: tuple[type[Exception], ...]) -> None:
        """Do what waits, in order, up to a silence."""
        while self._waiting:
            job = self._waiting[0]
            try:
                target.open()
                self._say_page(target.page)
                job.do(target)
            except failed as error:
                reason = one_line(str(error).partition("\n")[0])  # SQLAlchemy adds the statement
                if self._server and is_silence(error):
                    self._fall_silent(reason)
                    return
                self._trouble(f"MLflow failed ({type(error).__name__}: {reason}); the run goes on without it")
            except SpotlightError as error:  # of what makes an artifact
                self._trouble(f"MLflow lacks {job.what}: {error}")
            else:
                self._answered()
            self._waiting.pop(0)
            if job.goes_on():
                self._put(job)  # behind what came meanwhile

    def _fall_silent(self, reason: str) -> None:
        self._trouble(
            f"MLflow at {self._server} does not answer ({shortened(reason)}); the run goes on, and its "
            "figures are kept and sent when it does"
        )
        self._silent = True
        self._missing += [job for job in self._waiting if not job.kept]
        self._waiting[:] = [job for job in self._waiting if job.kept]

    def _answered(self) -> None:
        if self._silent:
            self._silent = self._reported = False
            self._say(f"MLflow at {self._server} answers again; the figures that were kept are sent")

    def _say_page(self, page: str) -> None:
        """Tell the address of the run's page once."""
        tell, self._on_page = self._on_page, None
        if not page or tell is None:
            return
        try:
            tell(page)
        except SpotlightError as error:
            _log.warning("could not note the address of MLflow's page: %s", error)

    def _say_missing(self, why: str, level: int = logging.WARNING) -> None:
        lacking = _in_words([*self._missing, *self._waiting])
        place = f"MLflow at {self._server}" if self._server else "MLflow"
        self._say(f"{place} {why} and lacks {lacking}; all figures are in the run's record", level)

    def _trouble(self, message: str) -> None:
        if self._reported:
            _log.debug(message)
            return
        self._reported = True
        self._say(message)

    def _say(self, message: str, level: int = logging.WARNING) -> None:
        _log.log(level, message)
        if self._on_trouble is None:
            return
        try:
            self._on_trouble(message)
        except SpotlightError as error:
            _log.warning("could not note MLflow's trouble either: %s", error)


def _in_words(jobs: Sequence[_Job]) -> str:
    """What is missing: `the figures of iterations 3 to 9, report.html`."""
    steps = [job.iteration for job in jobs if job.iteration is not None]
    figures = []
    if steps:
        first, last = min(steps), max(steps)
        which = f"iteration {first}" if first == last else f"iterations {first} to {last}"
        figures = [f"the figures of {which}"]
    others = [job.what for job in jobs if job.what]
    return ", ".join([*figures, *dict.fromkeys(others)]) or "its last figures"
