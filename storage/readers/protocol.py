"""A reader sends runs' records to a tool for comparing them, such as MLflow.

`following.py` calls one on a thread beside the run, with the record after the reader's position. Any method
may raise, and may be called again with the same values: after an outage, or if a process was killed before it
wrote the position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.config.tracking import TrackingConfig
from storage.home import Home
from storage.record.records import RunStatus


@dataclass(frozen=True)
class ReadRun:
    """A run, or an evaluation by `spotlight evaluate`, as a reader sees it.

    Attributes:
        settings: all settings, as JSON values by section.
        environment: versions, commit, preset and the like.
        began_at: Unix seconds.
        page: its address in the dashboard; empty if unknown.
        evaluates: subject of an evaluation: a run, or `untouched model`; empty for a run.
    """

    run_id: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    began_at: float
    page: str = ""
    evaluates: str = ""


class Reader(ABC):
    """A copy of one run elsewhere; used on one thread at a time.

    Attributes:
        label: name of the place for messages; a reader whose label has changed starts from the beginning.
        page: address of the run there, once it is open; empty for none.
    """

    label: str
    page: str = ""

    @abstractmethod
    def open(self, run: ReadRun, last: int) -> int | None:
        """Find or make the run's copy; called again after each failure.

        Args:
            last: last iteration that the reader took, perhaps without its evaluation; -1 for none.

        Returns:
            The iteration to start from, 0 if the copy is empty; None to continue after the position.
        """

    @abstractmethod
    def iteration(self, number: int, figures: Mapping[str, float], at: float) -> None:
        """Take the figures of an iteration.

        Args:
            number: number of the iteration, from 1.
            at: end of the iteration, in Unix seconds.
        """

    def evaluation(
        self, number: int, figures: Mapping[str, float], images: Mapping[str, bytes], at: float
    ) -> None:
        """Take a held-out evaluation that ended at `at` (Unix seconds).

        Args:
            number: iteration before the evaluation; 0 for the untouched model.
            images: PNG files by name, of clips animated WebP; an image has the same name in every evaluation.
        """
        self.iteration(number, figures, at)

    def event(self, kind: str, message: str, at: float) -> None:  # noqa: B027 - most readers have no use for it
        """Take an event.

        Args:
            kind: kind of the event, such as `hacking` or `worker_lost`.
            at: time of the event, in Unix seconds.
        """

    def artifact(self, path: Path) -> None:  # noqa: B027
        """Take a file of a finished run: its weights, their moving average, its report."""

    @abstractmethod
    def end(self, status: RunStatus, at: float) -> None:
        """Mark the run's end at `at` (Unix seconds), and close the copy."""

    def is_silence(self, error: Exception) -> bool:
        """Return True to try the same again later; an item that the place refuses twice is left out."""
        return isinstance(error, OSError)  # of connections and timeouts, also those of `requests`


@dataclass(frozen=True)
class ReaderPlugin:
    """A plug-in that makes a reader from settings; `tracking.to` names one of these.

    Attributes:
        build: builds a reader, which imports nothing slow before `open`.
        check: refuses unusable settings before a run starts, with a `ConfigurationError`.
    """

    build: Callable[[Home, TrackingConfig], Reader]
    check: Callable[[TrackingConfig], None] = lambda tracking: None
