"""The password of a home's Prefect server: a file that only its owner can read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from storage.errors import ServerError
from storage.home import Home

_USER = "spotlight"


def password_file(home: Home) -> Path:
    """Return the file with the line that a person enters into Prefect's login page."""
    return home.prefect / "password"


def home_password(home: Home) -> str:
    """Return the home's password, `spotlight:` and 256 random bits; it is made at the first call.

    Prefect takes all of it as its auth string, and so does its login page.

    Raises:
        ServerError: the password cannot be made or read, or the file holds something else.
    """
    file = password_file(home)
    try:
        if not file.exists():
            _make(file)
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
        password = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServerError(
            f"the password of the Prefect server cannot be made or read ({error}), and no server starts "
            f"without one; make {file} writable, or set SPOTLIGHT_HOME to another folder"
        ) from error
    user, _, secret = password.partition(":")
    if not (user and len(secret) >= 16 and password.isascii()):
        raise ServerError(
            f"{file} does not hold a password of the form user:password with at least 16 characters after "
            "the colon; delete it, and a new one is made"
        )
    return password


def _make(file: Path) -> None:
    """Write a new password; if several processes do so at once, one writes it and all use that one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as written:
            written.write(f"{_USER}:{secrets.token_hex(32)}\n")
        os.link(beside, file)
    except FileExistsError:
        return
    finally:
        beside.unlink()
