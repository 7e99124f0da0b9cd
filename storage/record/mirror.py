"""A second home for a run, off the machine: a folder, or an address that fsspec reads.

A thread copies the newest checkpoint there, and before it the rows of all iterations up to it, so that a
checkpoint that is there has its rows. A checkpoint is there once its manifest is, which is copied last. A
folder that serves as a mirror is a home: `resume` and the dashboard can open it.
"""

from __future__ import annotations

import json
import os
import posixpath
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.errors import CheckpointError, StorageError
from storage.home import Home
from storage.record.checkpoints import KEPT, MANIFEST, PINNED, CheckpointStore
from storage.record.run_folder import (
    CHECKPOINT,
    EVENTS_FILE,
    NOTES_FILE,
    PART_FILE,
    RUN_FILE,
    RunFolder,
    is_row_folder,
    read_json,
)

_FOLDER = "iteration-"

_CHANGING = (RUN_FILE, NOTES_FILE, EVENTS_FILE)
"""Files of a run that change; all others are written once."""

_TELLING = (PART_FILE, "iterations.parquet", "evaluations.parquet", "worker_states.parquet")
"""The first of these tells two folders of one name apart, by times or contents; it is copied last."""


class CheckpointMirror:
    """Copies what a run has saved; what cannot be copied is reported, and tried again with the next one.

    Args:
        address: from `checkpoint.mirror`.
        home: where the run is.
        run_id: the run.
        on_trouble: called with what went wrong, once for each reason; from the thread that copies.
    """

    def __init__(self, address: str, home: Home, run_id: str, on_trouble: Callable[[str], None]) -> None:
        self._address, self._home, self._run_id = address, home, run_id
        self._on_trouble = on_trouble
        self._reported = ""
        self._copied: set[str] = set()
        self._wake, self._ends = threading.Event(), False
        self._thread = threading.Thread(target=self._serve, name="mirror", daemon=True)
        self._thread.start()

    def copy_newest(self) -> None:
        """Ask for a copy of the newest checkpoint; returns at once."""
        self._wake.set()

    def close(self, wait_s: float) -> None:
        """Copy what is left, and end.

        Args:
            wait_s: how long that may take; then the rest is not copied.
        """
        self._ends = True
        self._wake.set()
        self._thread.join(wait_s)
        if self._thread.is_alive():
            self._on_trouble(f"the last checkpoint was not copied to {self._address} in {wait_s:g} s")

    def _serve(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            ends = self._ends
            try:
                copy_to_mirror(self._address, self._home, self._run_id, self._copied)
            except Exception as error:  # noqa: BLE001 - of whatever package the address needs
                self._report(
                    f"checkpoints are not copied to {self._address}: {type(error).__name__}: {error}"
                )
            if ends:
                return

    def _report(self, message: str) -> None:
        if message != self._reported:
            self._reported = message
            self._on_trouble(message)


def copy_to_mirror(address: str, home: Home, run_id: str, copied: set[str] | None = None) -> None:
    """Copy what is recorded of a run, its newest checkpoint and the pinned one, unless they are there.

    Older checkpoints are deleted there, torn copies, and later ones: their weights were given up. So are rows
    that the run has no more.

    Args:
        address: of the mirror.
        home: where the run is.
        run_id: the run.
        copied: names of the folders of rows that this life of the run has copied; grows.

    Raises:
        CheckpointError: there is no package for the address, or the run went on in another home.
    """
    refuse_if_continued(address, home, run_id)
    files, root = _opened(address, home, run_id)
    store = CheckpointStore(home.run(run_id))
    newest, pinned = max(store.iterations(), default=None), store.pinned
    _copy_rows(files, home.run(run_id), root, set() if copied is None else copied)
    if newest is None:
        return
    for iteration in {newest} if pinned is None else {newest, pinned}:
        source = home.run(run_id) / _name(iteration) / CHECKPOINT
        _copy_checkpoint(files, source, posixpath.join(root, _name(iteration), CHECKPOINT))
    if pinned is not None:
        files.pipe_file(posixpath.join(root, PINNED), str(pinned).encode())
    there = _checkpoints(files, root)
    kept = {*[iteration for iteration in there if iteration <= newest][-KEPT:], pinned}
    for iteration in _iterations(files, root):
        checkpoint = posixpath.join(root, _name(iteration), CHECKPOINT)
        if iteration not in kept and files.exists(checkpoint):
            files.rm(checkpoint, recursive=True)


def _copy_rows(files: Any, run: Path, root: str, copied: set[str]) -> None:
    """Copy a run's folders of rows, each once in a life of the run, and then the files that change."""
    listing = RunFolder(run).listing()
    folders = {folder.name: folder for folder in (*listing.parts, *listing.folders)}
    for name, folder in folders.items():
        if name not in copied:
            _copy_folder(files, folder.path, posixpath.join(root, name))
            copied.add(name)
    held = {folder.name for folder in listing.covered if (folder.path / CHECKPOINT).exists()}
    for name in _entries(files, root):
        if is_row_folder(name) and name not in folders:
            _drop_rows(files, posixpath.join(root, name), keeps_checkpoint=name in held)
            copied.discard(name)
    files.makedirs(root, exist_ok=True)
    for name in _CHANGING:
        if (run / name).is_file():
            target = posixpath.join(root, name)
            copying = _copying(files, target)
            files.put_file(str(run / name), copying)
            if copying != target:
                os.replace(copying, target)


def _drop_rows(files: Any, folder: str, keeps_checkpoint: bool) -> None:
    """Delete rows that the run has no more, or that a part holds."""
    if keeps_checkpoint:
        for name in _sizes(files, folder):
            files.rm_file(posixpath.join(folder, name))
    else:
        files.rm(folder, recursive=True)


def _copy_folder(files: Any, source: Path, target: str) -> None:
    """Copy the rows of a folder, unless an earlier life has; its checkpoint comes later."""
    sizes = {path.name: path.stat().st_size for path in source.iterdir() if path.is_file()}
    telling = next((name for name in _TELLING if name in sizes), None)
    there = _sizes(files, target)
    if telling and there == sizes:
        same = files.cat_file(posixpath.join(target, telling)) == (source / telling).read_bytes()
        if same:
            return
    copying = _copying(files, target)
    if copying == target:
        for name in there:
            if name == telling or name not in sizes:
                files.rm_file(posixpath.join(target, name))
    elif files.exists(copying):
        files.rm(copying, recursive=True)
    files.makedirs(copying, exist_ok=True)
    for name in sorted(sizes, key=lambda name: (name == telling, name)):
        files.put_file(str(source / name), posixpath.join(copying, name))
    if copying != target:
        if files.exists(target):
            files.rm(target, recursive=True)
        os.replace(copying, target)


def _sizes(files: Any, folder: str) -> dict[str, int]:
    """Return the sizes of the files in a folder, by name; none where there is no such folder."""
    if not files.exists(folder):
        return {}
    listed = files.ls(folder, detail=True)
    return {posixpath.basename(each["name"]): each["size"] for each in listed if each["type"] == "file"}


def _copying(files: Any, target: str) -> str:
    """Return where to write what is to be `target`: where a rename follows, as a home's reader may come."""
    from fsspec.implementations.local import LocalFileSystem

    parent, name = posixpath.split(target)
    return posixpath.join(parent, f".copying-{name}") if isinstance(files, LocalFileSystem) else target


def refuse_if_continued(address: str, home: Home, run_id: str) -> None:
    """Refuse a mirror to which another home has copied the run's later iterations.

    Then it knows of a life of the run that this home does not.

    Args:
        address: of the mirror.
        home: where the run is.
        run_id: the run.

    Raises:
        CheckpointError: it has; or there is no package for the address.
    """
    files, root = _opened(address, home, run_id)
    there = _checkpoints(files, root)
    here = CheckpointStore(home.run(run_id)).iterations()
    identity = posixpath.join(root, RUN_FILE)
    if not there or not here or there[-1] <= here[-1] or not files.exists(identity):
        return
    lives = json.loads(files.cat_file(identity)).get("lives", [])
    if not set(lives) <= set(RunFolder(home.run(run_id)).identity().get("lives", [])):
        raise CheckpointError(
            f"checkpoint.mirror = {address!r} has iteration {there[-1]} of run {run_id}, and this home ends "
            f"at {here[-1]}: the run went on elsewhere; resume it there, or from the mirror in a new "
            "SPOTLIGHT_HOME"
        )


def fetch_from_mirror(address: str, home: Home, run_id: str) -> int | None:
    """Fetch a run that this home does not know: its rows, its newest checkpoint and the pinned one.

    Nothing of it counts before all is here, so that a fetch that was cut off begins again.

    Args:
        address: of the mirror.
        home: where the run is to go on.
        run_id: the run.

    Returns:
        The iteration of the checkpoint; None where the home has the run already, or the mirror does not.

    Raises:
        CheckpointError: the place does not answer, or every checkpoint there is damaged.
    """
    run = home.run(run_id)
    if CheckpointStore(home.run(run_id)).iterations():
        return None
    files, root = _opened(address, home, run_id)
    fetching = run.with_name(f".fetching-{run.name}")
    shutil.rmtree(fetching, ignore_errors=True)
    fetched = CheckpointStore(fetching)
    try:
        found = _checkpoints(files, root)
        newest = next((each for each in reversed(found) if _fetch(files, root, fetched, each)), None)
        if newest is not None:
            pinned = _pinned(files, root)
            if pinned in found and pinned < newest and _fetch(files, root, fetched, pinned):
                fetched.pin(pinned)
            for name in _entries(files, root):
                if is_row_folder(name):
                    _fetch_folder(files, posixpath.join(root, name), fetching / name)
                elif name in _CHANGING:
                    files.get_file(posixpath.join(root, name), str(fetching / name))
            if run.exists():  # without checkpoints: of less worth than what was fetched
                run.rename(run.with_name(f".before-fetching-{run.name}-{time.time_ns()}"))
            fetching.rename(run)
            return newest
    except Exception as error:  # of whatever package the address needs
        raise CheckpointError(
            f"checkpoint.mirror = {address!r} cannot be read: {type(error).__name__}: {error}"
        ) from error
    if found:
        raise CheckpointError(
            f"checkpoint.mirror = {address!r}: every checkpoint of run {run_id} there is damaged; start "
            "a new run"
        )
    return None


def _fetch(files: Any, root: str, store: CheckpointStore, iteration: int) -> bool:
    """Fetch a checkpoint into a store; whether it is whole, else it is not kept."""
    folder = store.folder / _name(iteration) / CHECKPOINT
    folder.mkdir(parents=True)
    _fetch_files(files, posixpath.join(root, _name(iteration), CHECKPOINT), folder)
    try:
        store.load(iteration)
    except CheckpointError:
        shutil.rmtree(folder)
        return False
    return True


def _fetch_folder(files: Any, source: str, folder: Path) -> None:
    """Fetch a folder of rows; a part that was not copied to its end is left out: its folders are there."""
    folder.mkdir(exist_ok=True)
    _fetch_files(files, source, folder)
    if folder.name.startswith("part-"):
        try:
            read_json(folder / PART_FILE)
        except StorageError:
            shutil.rmtree(folder)


def _fetch_files(files: Any, source: str, folder: Path) -> None:
    for name in _sizes(files, source):
        files.get_file(posixpath.join(source, name), str(folder / name))


def _name(iteration: int) -> str:
    """Return the name of an iteration's folder, here and there."""
    return f"{_FOLDER}{iteration:06d}"


def _opened(address: str, home: Home, run_id: str) -> tuple[Any, str]:
    """Return the file system of an address, and the run's folder there."""
    import fsspec

    try:
        is_folder = address.startswith("/")  # which fsspec would read as two addresses if it has "::"
        files, root = (fsspec.filesystem("file"), address) if is_folder else fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint.mirror = {address!r} is no address, or its package is not installed: {error}"
        ) from error
    files.invalidate_cache()
    return files, posixpath.join(root, *home.run(run_id).relative_to(home.path).parts)


def _entries(files: Any, root: str) -> list[str]:
    """Return the names in a folder; none where there is no such folder."""
    if not files.exists(root):
        return []
    return [posixpath.basename(path.rstrip("/")) for path in files.ls(root, detail=False)]


def _iterations(files: Any, root: str) -> list[int]:
    """Return the iterations that have a folder, oldest first."""
    numbers = [name.removeprefix(_FOLDER) for name in _entries(files, root) if name.startswith(_FOLDER)]
    return sorted(int(number) for number in numbers if number.isdigit())


def _checkpoints(files: Any, root: str) -> list[int]:
    """Return the iterations whose checkpoint is whole, as far as its manifest tells, oldest first."""
    found = _iterations(files, root)
    return [each for each in found if files.exists(posixpath.join(root, _name(each), CHECKPOINT, MANIFEST))]


def _pinned(files: Any, root: str) -> int:
    """The iteration of the pinned checkpoint; -1 where there is none."""
    path = posixpath.join(root, PINNED)
    text = files.cat_file(path).decode() if files.exists(path) else ""
    return int(text) if text.isdigit() else -1


def _copy_checkpoint(files: Any, source: Path, target: str) -> None:
    manifest = posixpath.join(target, MANIFEST)
    try:
        content = (source / MANIFEST).read_bytes()
        if files.exists(manifest):
            if files.cat_file(manifest) == content:
                return
            files.rm_file(manifest)  # of an earlier life, which saved the iteration too
        files.makedirs(target, exist_ok=True)
        for path in sorted(source.iterdir()):
            if path.name != MANIFEST:
                files.put_file(str(path), posixpath.join(target, path.name))
        files.pipe_file(manifest, content)
    except FileNotFoundError:
        if source.is_dir():
            raise
        # Newer checkpoints have come meanwhile, and this one is gone.
