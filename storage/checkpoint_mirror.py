"""A second place for a run's checkpoints, off the machine: a folder, or an address that fsspec reads.

A thread of its own copies the newest checkpoint there, and the journal, from which the rows of the database
are made again on another machine. A checkpoint is there once its manifest is, which is copied last.
"""

from __future__ import annotations

import posixpath
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.checkpoints import KEPT, MANIFEST, CheckpointStore
from storage.errors import CheckpointError
from storage.home import Home

_FOLDER, _JOURNAL, _PINNED = "iteration-", "journal", "pinned"


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
                copy_to_mirror(self._address, self._home, self._run_id)
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


def copy_to_mirror(address: str, home: Home, run_id: str) -> None:
    """Copy a run's newest checkpoint, the pinned one and its journal, unless they are there.

    Older checkpoints are deleted there, torn copies, and later ones: their weights were given up.

    Args:
        address: of the mirror.
        home: where the run is.
        run_id: the run.

    Raises:
        CheckpointError: there is no package for the address, or the run went on in another home.
    """
    refuse_if_continued(address, home, run_id)
    files, root = _opened(address, run_id)
    store = CheckpointStore(home.checkpoints(run_id))
    newest, pinned = max(store.iterations(), default=None), store.pinned
    if newest is not None:
        for iteration in {newest} if pinned is None else {newest, pinned}:
            name = _name(iteration)
            _copy_checkpoint(files, store.folder / name, posixpath.join(root, name))
        if pinned is not None:
            files.pipe_file(posixpath.join(root, _PINNED), str(pinned).encode())
        there = _checkpoints(files, root)
        kept = {*[iteration for iteration in there if iteration <= newest][-KEPT:], pinned}
        for iteration in _folders(files, root):
            if iteration not in kept:
                files.rm(posixpath.join(root, _name(iteration)), recursive=True)
    journal = home.journal(run_id)
    if journal.is_file():
        files.makedirs(root, exist_ok=True)
        files.put_file(str(journal), posixpath.join(root, _JOURNAL))


def refuse_if_continued(address: str, home: Home, run_id: str) -> None:
    """Refuse a mirror to which another home has copied the run's later iterations.

    Then its newest checkpoint is later than any here, and its journal is longer: where weights were given up
    here, the journal here is the longer one.

    Args:
        address: of the mirror.
        home: where the run is.
        run_id: the run.

    Raises:
        CheckpointError: it has; or there is no package for the address.
    """
    files, root = _opened(address, run_id)
    journal, there = posixpath.join(root, _JOURNAL), _checkpoints(files, root)
    here = CheckpointStore(home.checkpoints(run_id)).iterations()
    if not there or not here or there[-1] <= here[-1] or not files.exists(journal):
        return
    known = home.journal(run_id)
    if files.size(journal) > (known.stat().st_size if known.is_file() else 0):
        raise CheckpointError(
            f"checkpoint.mirror = {address!r} has iteration {there[-1]} of run {run_id}, and this home ends "
            f"at {here[-1]}: the run went on elsewhere; resume it there, or from the mirror in a new "
            "SPOTLIGHT_HOME"
        )


def fetch_from_mirror(address: str, home: Home, run_id: str) -> int | None:
    """Fetch the newest checkpoint of a run that this home does not know, the pinned one and the journal.

    Nothing of it counts before all is here, so that a fetch that was cut off is begun anew.

    Args:
        address: of the mirror.
        home: where the run is to go on.
        run_id: the run.

    Returns:
        The iteration of the checkpoint; None where the home has the run already, or the mirror does not.

    Raises:
        CheckpointError: the place does not answer, or every checkpoint there is damaged.
    """
    store = CheckpointStore(home.checkpoints(run_id))
    fetched = CheckpointStore(store.folder / ".saving-fetched")
    if store.iterations() and not fetched.folder.exists():
        return None
    files, root = _opened(address, run_id)
    shutil.rmtree(fetched.folder, ignore_errors=True)
    try:
        found = _checkpoints(files, root)
        newest = next((each for each in reversed(found) if _fetch(files, root, fetched, each)), None)
        if newest is not None:
            pinned = _pinned(files, root)
            if pinned in found and pinned < newest:
                _fetch(files, root, fetched, pinned)
            if files.exists(posixpath.join(root, _JOURNAL)):
                files.get_file(posixpath.join(root, _JOURNAL), str(home.journal(run_id)))
            for iteration in fetched.iterations():
                if not (store.folder / _name(iteration)).exists():  # of the fetch that was cut off
                    (fetched.folder / _name(iteration)).rename(store.folder / _name(iteration))
            if pinned in store.iterations():
                store.pin(pinned)
            shutil.rmtree(fetched.folder)
            return newest
    except Exception as error:  # of whatever package the address needs
        raise CheckpointError(
            f"checkpoint.mirror = {address!r} cannot be read: {type(error).__name__}: {error}"
        ) from error
    if found:
        raise CheckpointError(
            f"checkpoint.mirror = {address!r}: every checkpoint of run {run_id} there is damaged; start the "
            "run anew"
        )
    return None


def _fetch(files: Any, root: str, store: CheckpointStore, iteration: int) -> bool:
    """Fetch a checkpoint into a store; whether it is whole, else it is not kept."""
    folder = store.folder / _name(iteration)
    folder.mkdir(parents=True)
    for file in files.ls(posixpath.join(root, folder.name), detail=False):
        files.get_file(file, str(folder / posixpath.basename(file)))
    try:
        store.load(iteration)
    except CheckpointError:
        shutil.rmtree(folder)
        return False
    return True


def _name(iteration: int) -> str:
    """Of a checkpoint's folder, here and there."""
    return f"{_FOLDER}{iteration:06d}"


def _opened(address: str, run_id: str) -> tuple[Any, str]:
    """The file system of an address, and the run's folder there."""
    import fsspec

    try:
        is_folder = address.startswith("/")  # which fsspec would read as two addresses if it has "::"
        files, root = (fsspec.filesystem("file"), address) if is_folder else fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint.mirror = {address!r} is no address, or its package is not installed: {error}"
        ) from error
    files.invalidate_cache()
    return files, posixpath.join(root, run_id)


def _folders(files: Any, root: str) -> list[int]:
    """Iterations of the checkpoints, torn ones too, oldest first."""
    if not files.exists(root):
        return []
    names = [posixpath.basename(path.rstrip("/")) for path in files.ls(root, detail=False)]
    numbers = [name.removeprefix(_FOLDER) for name in names if name.startswith(_FOLDER)]
    return sorted(int(number) for number in numbers if number.isdigit())


def _checkpoints(files: Any, root: str) -> list[int]:
    """Iterations of the checkpoints that are whole, as far as their manifests tell, oldest first."""
    found = _folders(files, root)
    return [each for each in found if files.exists(posixpath.join(root, _name(each), MANIFEST))]


def _pinned(files: Any, root: str) -> int:
    """The iteration of the pinned checkpoint; -1 where there is none."""
    path = posixpath.join(root, _PINNED)
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
