"""A second home for a run, off the machine: a folder, or an fsspec address.

A thread copies the newest checkpoint there, after the rows of all iterations up to it, so that a copied
checkpoint always has its rows. A checkpoint counts as copied once its manifest is, which is copied last. A
folder that serves as a mirror is a home: `resume` and the dashboard can open it.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import CheckpointError, StorageError
from storage.home import Home
from storage.record.checkpoints import KEPT, MANIFEST, PINNED, CheckpointStore
from storage.record.files import CHECKPOINT, PART_FILE, is_row_folder, read_json, repeatable_number
from storage.record.run_folder import EVENTS_FILE, NOTES_FILE, RUN_FILE, RunFolder

if TYPE_CHECKING:
    from fsspec.implementations.dirfs import DirFileSystem

_logger = logging.getLogger(__name__)

_CHANGING = (RUN_FILE, NOTES_FILE, EVENTS_FILE)
"""The files of a run that change; all others are written once."""

_COPYING = ".copying-"
"""The prefix of the name under which a folder or file is written."""

_MARKERS = (MANIFEST, PART_FILE, "iterations.parquet", "evaluations.parquet", "worker_states.parquet")
"""The first of these present is a folder's marker: copied last, it completes the copy.

Its times or contents distinguish two folders of one name.
"""


class CheckpointMirror:
    """A mirror that copies a run's saved data; a failed copy is reported and retried with the next one.

    Args:
        address: address from `checkpoint.mirror`.
        on_trouble: callback with a failure, once for each reason, from the thread that copies.
    """

    def __init__(self, address: str, home: Home, run_id: str, on_trouble: Callable[[str], None]) -> None:
        self._address, self._home, self._run_id = address, home, run_id
        self._on_trouble = on_trouble
        self._reported = ""
        self._copied: dict[str, int] = {}
        self._wake, self._ends = threading.Event(), False
        self._thread = threading.Thread(target=self._serve, name="mirror", daemon=True)
        self._thread.start()

    def copy_newest(self) -> None:
        """Ask for a copy of the newest checkpoint; returns at once."""
        self._wake.set()

    def close(self, wait_s: float) -> None:
        """Copy the rest, and end; anything not copied within `wait_s` seconds is omitted."""
        self._ends = True
        self._wake.set()
        began_s = time.monotonic()
        try:
            self._thread.join(wait_s)
        finally:  # a signal may end the wait
            if self._thread.is_alive():
                waited_s = time.monotonic() - began_s
                self._on_trouble(f"the last checkpoint was not copied to {self._address} in {waited_s:.1f} s")

    def _serve(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            ends = self._ends
            message = ""
            try:
                copy_to_mirror(self._address, self._home, self._run_id, self._copied)
            except Exception as error:  # noqa: BLE001 - of any package the address needs
                message = f"checkpoints are not copied to {self._address}: {type(error).__name__}: {error}"
            if message and message != self._reported:
                self._reported = message
                try:
                    self._on_trouble(message)
                except Exception as error:  # noqa: BLE001 - the thread must continue with the next copy
                    _logger.warning("%s (and this could not be recorded: %s)", message, error)
            if ends:
                return


def copy_to_mirror(address: str, home: Home, run_id: str, copied: dict[str, int] | None = None) -> None:
    """Copy a run's record, its newest checkpoint and the pinned one, unless they are there.

    Older checkpoints there are deleted, as are torn copies, later checkpoints, whose weights were abandoned,
    and rows that the run no longer has.

    Args:
        copied: folders of rows that this life of the run has copied, each with the sum of its files'
            modification times in nanoseconds; it is extended.

    Raises:
        CheckpointError: the package for the address is missing, or the run continued in another home.
    """
    refuse_if_continued(address, home, run_id)
    there, run = _opened(address, home, run_id), home.run(run_id)
    store = CheckpointStore(run)
    newest, pinned = max(store.iterations(), default=None), store.pinned
    for left in _listed(there):
        if left.startswith(_COPYING):  # of an interrupted copy
            there.rm(left, recursive=True)
    _copy_rows(there, run, {} if copied is None else copied)
    if newest is None:
        return
    for iteration in {newest} if pinned is None else {newest, pinned}:
        _copy_checkpoint(there, run, iteration)
    # A process that resumed the run may have saved more, or pinned another one.
    newest, pinned = max(store.iterations(), default=newest), store.pinned
    if pinned is not None:
        there.pipe_file(PINNED, str(pinned).encode())
    kept = {*[iteration for iteration in _checkpoints(there) if iteration <= newest][-KEPT:], pinned}
    for iteration in _iterations(there):
        if iteration not in kept and there.exists(_checkpoint(iteration)):
            there.rm(_checkpoint(iteration), recursive=True)


def _copy_rows(there: DirFileSystem, run: Path, copied: dict[str, int]) -> None:
    """Copy a run's folders of rows, each once per life of the run, and then the files that change."""
    listing = RunFolder(run).listing()
    for folder in (*listing.parts, *listing.folders):
        with _unless_gone(folder.path):
            # A repeated iteration keeps its name, but not the times of its files.
            times_ns = sum(path.stat().st_mtime_ns for path in folder.tables.values())
            if copied.get(folder.name) != times_ns:
                _copy_folder(there, folder.path, folder.name)
                copied[folder.name] = times_ns
    # A process that resumed the run may have copied newer folders. Folders covered meanwhile by a part stay,
    # as that part was not copied.
    later = RunFolder(run).listing()
    stays = {folder.name for each in (listing, later) for folder in (*each.parts, *each.folders)}
    held = {folder.name for folder in listing.covered if (folder.path / CHECKPOINT).exists()}
    outdated = [name for name in _listed(there) if is_row_folder(name) and name not in stays]
    if outdated:
        _keep_one_checkpoint(there, run, {*outdated} - held, listing.last_iteration or 0)
    for name in outdated:
        if name in held:  # a part has its rows, and it has a checkpoint
            for file in _sizes(there, name):
                there.rm_file(f"{name}/{file}")
        else:
            there.rm(name, recursive=True)
        copied.pop(name, None)
    there.makedirs("", exist_ok=True)
    for name in _CHANGING:
        if (run / name).is_file():
            there.put_file(str(run / name), _copying(there, name))
            _finish(there, name)


def _keep_one_checkpoint(there: DirFileSystem, run: Path, going: Collection[str], newest: int) -> None:
    """Copy another checkpoint first if all checkpoints there are in folders about to be deleted.

    Args:
        newest: last iteration whose rows are there.
    """
    found = _checkpoints(there)
    here = [iteration for iteration in CheckpointStore(run).iterations() if iteration <= newest]
    if here and found and all(f"iteration-{iteration:06d}" in going for iteration in found):
        _copy_checkpoint(there, run, here[-1])


def _copy_checkpoint(there: DirFileSystem, run: Path, iteration: int) -> None:
    with _unless_gone(run / _checkpoint(iteration)):
        _copy_folder(there, run / _checkpoint(iteration), _checkpoint(iteration))


@contextmanager
def _unless_gone(source: Path) -> Iterator[None]:
    """Ignore a missing file if the whole source folder is gone.

    A newer checkpoint or a part may replace it at any moment.
    """
    try:
        yield
    except FileNotFoundError:
        if source.is_dir():
            raise


def _copy_folder(there: DirFileSystem, source: Path, target: str) -> None:
    """Copy the files of a folder, the marker last, unless an earlier life did."""
    sizes = {path.name: path.stat().st_size for path in source.iterdir() if path.is_file()}
    marker, copied = _marker(sizes), _sizes(there, target)
    is_same = bool(marker) and copied == sizes
    if is_same and there.cat_file(f"{target}/{marker}") == (source / marker).read_bytes():
        return
    copying = _copying(there, target)
    had_checkpoint = there.exists(f"{target}/{CHECKPOINT}")  # it belongs to the old rows
    if had_checkpoint:
        _keep_one_checkpoint(there, source.parent, {target}, repeatable_number(target) - 1)
    if copying == target:
        if had_checkpoint:
            there.rm(f"{target}/{CHECKPOINT}", recursive=True)
        for name in copied:
            if name == marker or name not in sizes:
                there.rm_file(f"{target}/{name}")
    _put_files(there, source, copying)
    if had_checkpoint:
        with _unless_gone(source / CHECKPOINT):
            _put_files(there, source / CHECKPOINT, f"{copying}/{CHECKPOINT}")
    if copying != target and there.exists(target):
        there.rm(target, recursive=True)
    _finish(there, target)


def _put_files(there: DirFileSystem, source: Path, target: str) -> None:
    """Copy the files of a folder, the marker last."""
    names = [path.name for path in source.iterdir() if path.is_file()]
    marker = _marker(names)
    there.makedirs(target, exist_ok=True)
    for name in sorted(names, key=lambda name: (name == marker, name)):
        there.put_file(str(source / name), f"{target}/{name}")


def _marker(names: Collection[str]) -> str:
    """Return the marker among the files of a folder; empty if there is none."""
    return next((name for name in _MARKERS if name in names), "")


def _copying(there: DirFileSystem, target: str) -> str:
    """Return the path at which to write the future `target`: another one in a folder, as it may be read."""
    from fsspec.implementations.local import LocalFileSystem

    return f"{_COPYING}{target.replace('/', '-')}" if isinstance(there.fs, LocalFileSystem) else target


def _finish(there: DirFileSystem, target: str) -> None:
    """Move data written elsewhere to its final name in one step."""
    if (copying := _copying(there, target)) != target:
        there.makedirs(target.rpartition("/")[0], exist_ok=True)
        there.mv(copying, target)


def refuse_if_continued(address: str, home: Home, run_id: str) -> None:
    """Refuse a mirror with later iterations, from a life of the run that this home does not know.

    Raises:
        CheckpointError: it has; or the package for the address is missing.
    """
    place, run = _opened(address, home, run_id), home.run(run_id)
    there, here = _checkpoints(place), CheckpointStore(run).iterations()
    if not there or not here or there[-1] <= here[-1] or not place.exists(RUN_FILE):
        return
    lives = json.loads(place.cat_file(RUN_FILE)).get("lives", [])
    if not set(lives) <= set(RunFolder(run).identity().get("lives", [])):
        raise CheckpointError(
            f"checkpoint.mirror = {address!r} has iteration {there[-1]} of run {run_id}, and this home ends "
            f"at {here[-1]}: the run went on elsewhere; resume it there, or from the mirror in a new "
            "SPOTLIGHT_HOME"
        )


def fetch_from_mirror(address: str, home: Home, run_id: str) -> int | None:
    """Fetch a run that this home does not know, and return the iteration of its newest checkpoint.

    Its rows and pinned checkpoint come too. Nothing counts until everything is here, so an interrupted fetch
    starts over. None if the home already has the run, or the mirror does not.

    Raises:
        CheckpointError: the mirror does not answer, or every checkpoint there is damaged.
    """
    run = home.run(run_id)
    if CheckpointStore(run).iterations():
        return None
    there = _opened(address, home, run_id)
    fetching = run.with_name(f".fetching-{run.name}")
    shutil.rmtree(fetching, ignore_errors=True)
    fetched = CheckpointStore(fetching)
    try:
        found = _checkpoints(there)
        newest = next((each for each in reversed(found) if _fetch_checkpoint(there, fetched, each)), None)
        if newest is not None:
            text = there.cat_file(PINNED).decode() if there.exists(PINNED) else ""
            pinned = int(text) if text.isdigit() else newest
            if pinned in found and pinned < newest and _fetch_checkpoint(there, fetched, pinned):
                fetched.pin(pinned)
            for name in _listed(there):
                if is_row_folder(name):
                    _fetch_rows(there, name, fetching / name)
                elif name in _CHANGING:
                    there.get_file(name, str(fetching / name))
            if run.exists():  # without checkpoints: worth less than the fetched run
                run.rename(run.with_name(f".before-fetching-{run.name}-{time.time_ns()}"))
            fetching.rename(run)
            return newest
    except Exception as error:  # of any package the address needs
        raise CheckpointError(
            f"checkpoint.mirror = {address!r} cannot be read: {type(error).__name__}: {error}"
        ) from error
    if found:
        raise CheckpointError(
            f"checkpoint.mirror = {address!r}: every checkpoint of run {run_id} there is damaged; start "
            "a new run"
        )
    return None


def _fetch_checkpoint(there: DirFileSystem, store: CheckpointStore, iteration: int) -> bool:
    """Fetch a checkpoint into a store, and return True; an incomplete one is not kept."""
    folder = store.folder / _checkpoint(iteration)
    _fetch_files(there, _checkpoint(iteration), folder)
    try:
        store.load(iteration)
    except CheckpointError:
        shutil.rmtree(folder)
        return False
    return True


def _fetch_rows(there: DirFileSystem, source: str, folder: Path) -> None:
    """Fetch a folder of rows; an incomplete part is left out, as its folders are there."""
    _fetch_files(there, source, folder)
    if folder.name.startswith("part-"):
        try:
            read_json(folder / PART_FILE)
        except StorageError:
            shutil.rmtree(folder)


def _fetch_files(there: DirFileSystem, source: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in _sizes(there, source):
        there.get_file(f"{source}/{name}", str(folder / name))


def _opened(address: str, home: Home, run_id: str) -> DirFileSystem:
    import fsspec
    from fsspec.implementations.dirfs import DirFileSystem

    try:
        is_folder = address.startswith("/")  # which fsspec would read as two addresses if it has "::"
        files, root = (fsspec.filesystem("file"), address) if is_folder else fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint.mirror = {address!r} is not an address, or its package is not installed: {error}"
        ) from error
    files.invalidate_cache()
    return DirFileSystem(f"{root.rstrip('/')}/{home.run(run_id).relative_to(home.path)}", files)


def _checkpoint(iteration: int) -> str:
    """Return the path of an iteration's checkpoint, the same here and there."""
    return f"iteration-{iteration:06d}/{CHECKPOINT}"


def _listed(there: DirFileSystem, folder: str = "") -> dict[str, dict[str, Any]]:
    """Return the entries of a folder by name, of the run's by default; empty if there is no such folder."""
    if not there.exists(folder):
        return {}
    found: Any = there.ls(folder, detail=True)
    return {each["name"].rstrip("/").rpartition("/")[2]: each for each in found}


def _sizes(there: DirFileSystem, folder: str) -> dict[str, int]:
    """Return the sizes of the files in a folder, in bytes, by name."""
    return {name: each["size"] for name, each in _listed(there, folder).items() if each["type"] == "file"}


def _iterations(there: DirFileSystem) -> list[int]:
    """Return the iterations that have a folder, oldest first."""
    numbers = [name.removeprefix("iteration-") for name in _listed(there) if name.startswith("iteration-")]
    return sorted(int(number) for number in numbers if number.isdigit())


def _checkpoints(there: DirFileSystem) -> list[int]:
    """Return the iterations whose checkpoint is complete according to its manifest, oldest first."""
    return [each for each in _iterations(there) if there.exists(f"{_checkpoint(each)}/{MANIFEST}")]
