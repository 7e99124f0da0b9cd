"""What TensorBoard and W&B have of a run, read back from their files."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from storage.home import Home
from tests.read_runs import Points


def tensorboard_files(home: Home, run_id: str) -> Any:
    """TensorBoard's own view of a run: all steps, what was voided left out."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(home.tensorboard / run_id), size_guidance={"scalars": 0, "images": 0})
    return found.Reload()


def tensorboard_points(home: Home, run_id: str) -> Points:
    """The scalars of a run."""
    found = tensorboard_files(home, run_id)
    tags = found.Tags()["scalars"]
    return {tag: sorted((one.step, one.value) for one in found.Scalars(tag)) for tag in tags}


def wandb_records(folder: Path, run_id: str) -> list[Any]:
    """The records of a run's offline folders, in the order in which `wandb sync` takes them."""
    from wandb.proto import wandb_internal_pb2

    protos: Any = wandb_internal_pb2  # type checkers do not know the names of generated code
    found = []
    for file in sorted(folder.glob(f"wandb/offline-run-*-{run_id}/run-*.wandb")):
        for content in _log_entries(file.read_bytes()):
            record = protos.Record()
            record.ParseFromString(content)
            found.append(record)
    return found


def wandb_points(folder: Path, run_id: str) -> Points:
    """The numbers that were logged, by W&B's axis of ours."""
    found: Points = defaultdict(list)
    for record in wandb_records(folder, run_id):
        if record.WhichOneof("record_type") != "history":
            continue
        row = {
            ".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
        }
        step = row.pop("iteration")
        for name, value in row.items():
            if not name.startswith(("_", "held-out/")):
                found[name].append((step, float(value)))
    return {name: sorted(points) for name, points in found.items()}


_BLOCK, _HEADER = 32_768, 7


def _log_entries(content: bytes) -> list[bytes]:
    """The entries of a file in LevelDB's format of logs, after W&B's own header of 7 bytes."""
    found, parts, place = [], b"", 7
    while place + _HEADER <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER:
            place += left
            continue
        length = int.from_bytes(content[place + 4 : place + 6], "little")
        kind = content[place + 6]
        parts += content[place + _HEADER : place + _HEADER + length]
        if kind in (1, 4):  # whole, or the last part
            found.append(parts)
            parts = b""
        place += _HEADER + length
    return found
