"""TensorBoard's copy of a run: event files in `HOME/tensorboard/RUN/`, written without torch."""

from __future__ import annotations

import io
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from storage.clock import now
from storage.pictures import picture_file
from storage.readers.protocol import Reader, ReadRun
from storage.record.records import RunStatus

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter

_PREFIX = "events.out.tfevents."
_NUMBER = re.compile(rf"{re.escape(_PREFIX)}(\d+)\b")

_START, _RGB = 1, 3
"""TensorBoard's numbers for the start of a session, and for a picture's colours."""


class TensorboardReader(Reader):
    """A run for TensorBoard; each life of the run is a file, which voids later steps of earlier files.

    Args:
        folder: folder of all runs, `--logdir` of TensorBoard.
    """

    label = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: RecordWriter | None = None

    def open(self, run: ReadRun, last: int) -> int | None:
        """Begin a file; the last iteration, perhaps partly written, is written again."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._close()
        folder = self._folder / quote(run.run_id, safe="")
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files by name. Those of its own writer may not keep the order: two files of one
        # second differ by a number without leading zeros, and a clock may be set back.
        later = [int(found[1]) + 1 for file in folder.iterdir() if (found := _NUMBER.match(file.name))]
        file = folder / f"{_PREFIX}{max([int(now()), *later]):010d}.{socket.gethostname()}"
        begin = max(last, 0) if any(folder.iterdir()) else 0
        self._writer = RecordWriter(file.open("xb"))
        self._write(0, now(), file_version="brain.Event:2")
        self._write(begin, run.began_at, session_log={"status": _START})
        return begin

    def iteration(self, number: int, figures: Mapping[str, float], at: float) -> None:
        """Write a scalar for each figure."""
        values = [{"tag": name, "simple_value": value} for name, value in figures.items()]
        self._write(number, at, summary={"value": values})

    def evaluation(
        self, number: int, figures: Mapping[str, float], images: Mapping[str, bytes], at: float
    ) -> None:
        """Write figures, and pictures that have a slider over the iterations."""
        import numpy as np
        from PIL import Image

        self.iteration(number, figures, at)
        pictures = []
        for name, png in images.items():
            picture = Image.open(io.BytesIO(png))
            width, height = picture.size
            if picture.format != "PNG":  # its pages show no WebP: the first frame of a clip
                png = picture_file(np.asarray(picture.convert("RGB")))
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
        self._writer.write(protos.Event(step=step, wall_time=at, **content).SerializeToString())
        self._writer.flush()
