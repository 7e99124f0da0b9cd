"""Checks of the output of a command, a new folder or a writable file, before anything starts."""

from __future__ import annotations

import os
from pathlib import Path

from storage.errors import ConfigurationError, quoted


def claim_folder(path: str | Path, option: str) -> Path:
    """Make the folder, and return its absolute path; `option` named it, such as `--out`, for messages.

    Raises:
        ConfigurationError: the folder is not empty, or cannot be made or written to.
    """
    name = f"{option} {quoted(str(path))}"
    try:
        folder = Path(os.path.expanduser(path)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        used = any(folder.iterdir())
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        problem = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"{name} is not an empty folder and cannot be made ({problem}); name a new one where this "
            "user can write"
        ) from error
    if used:
        raise ConfigurationError(f"{name} is not an empty folder; name a new one")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{name} cannot be written to by this user; name another folder")
    return folder


def writable_file(path: str | Path, option: str) -> Path:
    """Return a file's absolute path if it can be written; an existing one keeps its content until then.

    Raises:
        ConfigurationError: the path is a folder, or its folder is missing or cannot be written to.
    """
    name = f"{option} {quoted(str(path))}"
    try:
        file = Path(os.path.expanduser(path)).absolute()
        if file.is_dir():
            raise ConfigurationError(f"{name} is a folder; name a file in it")
        if not file.parent.is_dir():
            raise ConfigurationError(f"{name}: the folder {file.parent} is missing; make it, or name another")
        new = not file.exists()
        file.open("ab").close()
        if new:
            file.unlink()
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be written ({error.strerror}); name another file") from error
    return file
