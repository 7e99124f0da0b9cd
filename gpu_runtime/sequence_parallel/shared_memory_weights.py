"""Weights in shared memory: published once per instance, mapped by every worker on it.

The file outlives its donor, so who needs it is written where a kill cannot forget it: everyone who
does holds a shared lock on the file, and the kernel takes the locks of a dead process away. Whoever
finds that nobody holds one may remove the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from gpu_runtime.sequence_parallel.weight_offers import (
    State,
    WeightOffer,
    check_weights,
    size_bytes,
    weights_checksum,
)
from storage.errors import WeightsUnavailableError

SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "spotlight-weights-"
_SUFFIX = ".safetensors"


class SharedMemoryWeights:
    """A road through shared memory (`WeightRoad`).

    Args:
        folder: in memory; another one in tests.
    """

    name = "shared-memory"

    def __init__(self, folder: Path = SHARED_MEMORY) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}  # path → descriptor with a shared lock

    def publish(self, state: State, instance: str, version: int) -> WeightOffer:
        """Write the weights once; they stay as long as anyone holds them.

        Raises:
            WeightsUnavailableError: if there is not enough shared memory.
        """
        checksum = weights_checksum(state)
        on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        needed, free = size_bytes(state), _free_bytes(self._folder)
        if needed > free:
            raise WeightsUnavailableError(
                f"{self._folder} has {free} bytes free, the weights need {needed}; let new workers load "
                "from disk"
            )
        # The lock is taken before the file has its name, so that nobody finds it without an owner.
        descriptor, draft = tempfile.mkstemp(prefix=f".{_PREFIX}", dir=self._folder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            save_file(on_cpu, draft)
            if os.stat(draft).st_ino != os.fstat(descriptor).st_ino:  # written as a new file
                os.close(descriptor)
                descriptor = os.open(draft, os.O_RDONLY)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            path = self._folder / f"{_PREFIX}{instance}-{version}-{checksum}-{os.getpid()}{_SUFFIX}"
            os.rename(draft, path)
        except BaseException:
            os.close(descriptor)
            Path(draft).unlink(missing_ok=True)
            raise
        self._hold(str(path), descriptor)
        return WeightOffer(self.name, instance, version, checksum, needed, str(path))

    def take(self, offer: WeightOffer) -> dict[str, torch.Tensor]:
        """Map the weights; the memory is shared with all who do, until one of them writes to it.

        Raises:
            WeightsUnavailableError: if the file is gone, torn or fails its checksum.
        """
        path = str(offer.place)
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise WeightsUnavailableError(f"no weights at {path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.fstat(descriptor).st_nlink == 0:
                raise WeightsUnavailableError(f"the weights at {path} were removed just now")
            try:
                state = load_file(path)
            except (SafetensorError, OSError) as error:
                raise WeightsUnavailableError(f"the weights at {path} cannot be read: {error}") from error
            check_weights(state, offer)
        except BaseException:
            os.close(descriptor)
            raise
        self._hold(path, descriptor)
        return state

    def withdraw(self, offer: WeightOffer) -> None:
        """Let go; the last one removes the file. Tensors that are mapped stay whole."""
        descriptor = self._held.pop(str(offer.place), None)
        if descriptor is not None:
            os.close(descriptor)
            _remove_if_unheld(Path(offer.place))

    def _hold(self, path: str, descriptor: int) -> None:
        before = self._held.pop(path, None)
        if before is not None:
            os.close(before)
        self._held[path] = descriptor


def sweep(folder: Path = SHARED_MEMORY) -> list[str]:
    """Remove weights that no living process holds, such as those of killed workers; their names."""
    found = [path for pattern in (_PREFIX, f".{_PREFIX}") for path in folder.glob(f"{pattern}*")]
    return sorted(path.name for path in found if _remove_if_unheld(path))


def _remove_if_unheld(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            return True
        return False
    finally:
        os.close(descriptor)


def _free_bytes(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize
