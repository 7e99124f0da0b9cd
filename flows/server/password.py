"""The password of a home's Prefect server: a file that only its owner can read."""

from __future__ import annotations

import secrets
from pathlib import Path

from storage.errors import ServerError
from storage.home import Home
from storage.record.files import locked


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
        with locked(file):  # of several processes one writes it, and all use that one
            if not file.stat().st_size:
                file.write_text(f"spotlight:{secrets.token_hex(32)}\n", encoding="utf-8")
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
