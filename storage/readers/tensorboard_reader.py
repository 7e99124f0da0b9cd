"""TensorBoard's copy of a run: event files in `HOME/tensorboard/RUN/`, written without torch."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from storage.readers.protocol import Reader, ReadRun
from storage.record.records import RunStatus

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

_START, _RGB = 1, 3
"""TensorBoard's numbers for the beginning of a session, and for a picture's colours."""


class TensorboardReader(Reader):
    """A run as TensorBoard reads it; each life of the run is a file, which voids later steps of those before.

    Args:
        folder: of all runs, `--logdir` of TensorBoard.
    """

    label = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: EventFileWriter | None = None

    def open(self, run: ReadRun, last: int) -> int | None:
        """Begin a file; what was written of the last iteration, perhaps in part, is written again."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._close()
        folder = self._folder / quote(run.run_id, safe="")
        begin = max(last, 0) if folder.exists() and any(folder.iterdir()) else 0
        self._writer = EventFileWriter(str(folder))
        self._write(begin, run.began_at, session_log={"status": _START})
        return begin

    def iteration(self, number: int, figures: Mapping[str, float], at: float) -> None:
        """Write a scalar for each figure."""
        values = [{"tag": name, "simple_value": value} for name, value in figures.items()]
        self._write(number, at, summary={"value": values})

    def evaluation(
        self, number: int, figures: Mapping[str, float], images: Mapping[str, bytes], at: float
    ) -> None:
        """Write figures, and pictures with a slider over the iterations."""
        from PIL import Image

        self.iteration(number, figures, at)
        pictures = []
        for name, png in images.items():
            width, height = Image.open(io.BytesIO(png)).size
            image = {"width": width, "height": height, "colorspace": _RGB, "encoded_image_string": png}
            pictures.append({"tag": name, "image": image})
        self._write(number, at, summary={"value": pictures})

    def end(self, status: RunStatus, at: float) -> None:
        """Close the file."""
        self._close()

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _write(self, step: int, at: float, **content: Any) -> None:
        from tensorboard.compat.proto import event_pb2

        protos: Any = event_pb2  # type checkers do not know the names of generated code
        assert self._writer is not None, "a reader is opened before it takes anything"
        self._writer.add_event(protos.Event(step=step, wall_time=at, **content))
        self._writer.flush()
