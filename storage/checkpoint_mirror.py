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

_FOLDER = "iteration-"


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
        """Let the newest checkpoint be copied; returns at once."""
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
    """Copy the newest checkpoint of a run and its journal, unless they are there; older ones go.

    Args:
        address: of the mirror.
        home: where the run is.
        run_id: the run.

    Raises:
        CheckpointError: there is no package for the address.
    """
    files, root = _opened(address, run_id)
    store = CheckpointStore(home.checkpoints(run_id))
    newest = max(store.iterations(), default=None)
    if newest is not None:
        source = store.folder / f"{_FOLDER}{newest:06d}"
        _copy_checkpoint(files, source, posixpath.join(root, source.name))
        for name in sorted(_checkpoints(files, root))[:-KEPT]:
            files.rm(posixpath.join(root, name), recursive=True)
    journal = home.journal(run_id)
    if journal.is_file():
        files.makedirs(root, exist_ok=True)
        files.put_file(str(journal), posixpath.join(root, "journal"))


def fetch_from_mirror(address: str, home: Home, run_id: str) -> int | None:
    """Fetch the newest checkpoint of a run that this home does not know, and its journal.

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
    if store.iterations():
        return None
    files, root = _opened(address, run_id)
    try:
        found = sorted(_checkpoints(files, root), reverse=True)
        for name in found:
            coming = store.folder / f".saving-{name}"
            shutil.rmtree(coming, ignore_errors=True)
            coming.mkdir(parents=True)
            for file in files.ls(posixpath.join(root, name), detail=False):
                files.get_file(file, str(coming / posixpath.basename(file)))
            coming.rename(store.folder / name)
            iteration = int(name.removeprefix(_FOLDER))
            if _is_whole(store, iteration):
                if files.exists(posixpath.join(root, "journal")):
                    files.get_file(posixpath.join(root, "journal"), str(home.journal(run_id)))
                return iteration
            shutil.rmtree(store.folder / name)
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


def _is_whole(store: CheckpointStore, iteration: int) -> bool:
    try:
        store.load(iteration)
    except CheckpointError:
        return False
    return True


def _opened(address: str, run_id: str) -> tuple[Any, str]:
    """The file system of an address, and the run's folder there."""
    import fsspec

    try:
        files, root = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint.mirror = {address!r} is no address, or its package is not installed: {error}"
        ) from error
    files.invalidate_cache()
    return files, posixpath.join(root, run_id)


def _checkpoints(files: Any, root: str) -> list[str]:
    """Names of the checkpoints that are whole, as far as their manifests tell."""
    if not files.exists(root):
        return []
    names = [posixpath.basename(path.rstrip("/")) for path in files.ls(root, detail=False)]
    return [
        name
        for name in names
        if name.startswith(_FOLDER) and files.exists(posixpath.join(root, name, MANIFEST))
    ]


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
