"""Your own reader: it sends a run's figures to SwanLab.

A `Reader` takes a run's records, and a `ReaderPlugin` builds it from settings. With `swanlab` installed:

    PYTHONPATH=examples spotlight train --preset glyphs --set 'tracking.to=["own_reader:SWANLAB"]'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.readers.protocol import Reader, ReaderPlugin, ReadRun
from storage.record.records import RunStatus


class SwanLab(Reader):
    """A run in SwanLab under the same identifier."""

    label = "SwanLab"

    def open(self, run: ReadRun, last: int) -> int | None:
        """Find or make the run there."""
        import swanlab  # pyright: ignore[reportMissingImports] - no dependency of this project

        self.run: Any = swanlab.init(id=run.run_id, resume="allow", config=dict(run.settings))
        return None  # continue after what was taken; 0 sends all again

    def iteration(self, number: int, figures: Mapping[str, float], at: float) -> None:
        """Log the figures of an iteration, and, as `evaluation` calls this, of an evaluation."""
        self.run.log(dict(figures), step=number)

    def end(self, status: RunStatus, at: float) -> None:
        """Close the run there."""
        self.run.finish()


SWANLAB = ReaderPlugin(lambda home, tracking: SwanLab())
