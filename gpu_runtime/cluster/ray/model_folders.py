"""Copies of model folders for cluster hosts that lack them, at the same paths.

The driver's host sends the files in parts through Ray's object store. A host that has a folder uses it. This
file does not import Ray.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from storage.errors import ModelError

_PART_BYTES = 16 * 1024**2


class FolderSource:
    """The sender of files from folders of its host, an actor on the driver's host."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of each file, by its path in the folder."""
        found = (path for path in Path(folder).rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(found)}

    def part(self, folder: str, name: str, offset: int) -> bytes:
        """Return the next bytes of a file.

        Args:
            folder: folder of the file.
            name: path in the folder.
            offset: position of the first byte.
        """
        with Path(folder, name).open("rb") as file:
            file.seek(offset)
            return file.read(_PART_BYTES)


def outermost(folders: Sequence[str], among: Sequence[str]) -> list[str]:
    """Return the outermost of all absolute paths that contains each folder: none is copied into another."""
    every = [Path(folder) for folder in (*folders, *among)]
    found = {min(one for one in every if Path(folder).is_relative_to(one)) for folder in folders}
    return sorted(map(str, found))


def bring(folder: Path, sizes: Callable[[], dict[str, int]], part: Callable[[str, int], bytes]) -> None:
    """Copy a folder to this host unless it exists; one process per host copies, and others wait for it.

    Args:
        folder: path of the folder on both hosts.
        sizes: function that returns the bytes of its files.
        part: function that returns the next bytes of a file, from an offset.

    Raises:
        ModelError: if the disk lacks room or cannot be written, or the folder has no files.
    """
    if folder.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f".{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the process ends, however it ends
            if not folder.is_dir():
                _fetch(folder, sizes(), part)
    except OSError as error:
        raise ModelError(
            f"{folder} is not on {socket.gethostname()} and cannot be created there: {error}; copy the model "
            "there, or make its parent folder writable"
        ) from error


def _fetch(folder: Path, sizes: dict[str, int], part: Callable[[str, int], bytes]) -> None:
    if not sizes:
        raise ModelError(f"{folder} has no files on the driver's host; put the model there")
    coming = folder.parent / f".{folder.name}.coming"
    shutil.rmtree(coming, ignore_errors=True)  # left by a process that was killed
    total, free = sum(sizes.values()), shutil.disk_usage(folder.parent).free
    if total > free:
        raise ModelError(
            f"{folder} is not on {socket.gethostname()}, which has {free / 1024**3:.1f} GiB free, but needs "
            f"{total / 1024**3:.1f} GiB for it; free some, or exclude the host"
        )
    for name, size in sizes.items():
        path = coming / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            while file.tell() < size:
                arrived = part(name, file.tell())
                if not arrived:
                    raise ModelError(f"{folder / name} became shorter on the driver's host; start again")
                file.write(arrived)
    os.replace(coming, folder)
