"""Dollars as text, text and files that users give, and checks of where output goes."""

from __future__ import annotations

import ipaddress
import json
import math
import os
import re
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ValidationError

from storage.errors import ConfigurationError, SpotlightError, quoted

M = TypeVar("M", bound=BaseModel)

LARGEST_FILE_BYTES = 256 * 2**20
"""The most bytes of a file that is read whole: nothing that a person writes for a run comes near it."""

NOT_TEXT = "must contain neither NUL nor half a surrogate pair"
"""The reason in a refusal."""

_MOST_PROBLEMS = 5  # of a file, in a message
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


def is_text(text: str) -> bool:
    """Return True for text without NUL (C programs cut it off there) or lone surrogates (invalid Unicode)."""
    return _UNWRITABLE.search(text) is None


def usd(amount: float) -> str:
    """Return dollars with as many digits as matter: `$12.35`, `$0.34`, `$0.0085`."""
    if amount == 0 or amount >= 0.1:
        return f"${amount:,.2f}"
    digits = 1 - math.floor(math.log10(amount))
    return f"${amount:.{digits}f}" if digits <= 8 else "$0.00"


def one_line(text: str) -> str:
    """Return the text with line breaks and other control characters written as escapes, for a message."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def file_stem(text: str) -> str:
    """Return a file's name without suffix for any text: only letters, digits, `_`, `.` and `-`.

    A run that was made elsewhere may be named like a path, which must not choose the folder.
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.") or "spotlight"


def web_address(text: str) -> SplitResult | None:
    """Return the parts of an address of the web, with a scheme and a host; None if the text is not one."""
    try:
        parts = urlsplit(text)
        is_whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # half an IPv6 address, a port that is not a number
        return None
    return parts if is_whole else None


def is_loopback(host: str) -> bool:
    """Return True for a name or an address, also a short one (`127.1`), that only this machine reaches."""
    if host == "localhost":
        return True
    with suppress(OSError, ValueError):
        host = socket.inet_ntoa(socket.inet_aton(host))
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_text_file(path: str | Path, name: str, failure: type[SpotlightError]) -> str:
    """Read a UTF-8 file, with or without a byte order mark; `~` in its path is the user's home folder.

    Args:
        name: beginning of a refusal, such as `preset mine.toml`.
        failure: raised if the path cannot be read, or names a folder, a device or a pipe, or the file is too
            large or not UTF-8.
    """
    name = one_line(name)
    try:
        file = Path(path).expanduser()
        status = file.stat()
        mode, size_bytes = status.st_mode, status.st_size
        # A pipe would block the reader, a device never end.
        is_read = stat.S_ISREG(mode) and size_bytes <= LARGEST_FILE_BYTES
        text = file.read_text(encoding="utf-8-sig") if is_read else ""
    except UnicodeDecodeError as error:
        raise failure(f"{name}: not UTF-8 at byte {error.start}; save the file as UTF-8") from error
    except (OSError, ValueError, RuntimeError) as error:  # NUL in the path; no such user after `~`
        problem = getattr(error, "strerror", None) or str(error)
        raise failure(f"{name} cannot be read: {problem}; check the path") from error
    if not stat.S_ISREG(mode):
        kind = "folder" if stat.S_ISDIR(mode) else "device or pipe"
        raise failure(f"{name} is a {kind}, not a file; check the path")
    if not is_read:
        raise failure(
            f"{name} has {size_bytes:,} bytes, above the {LARGEST_FILE_BYTES:,} that are read; split it, or "
            "check the path"
        )
    return text


def read_json_model(path: Path, kind: str, model: type[M], documented: str) -> M:
    """Read a JSON file, possibly written by the user, as a pydantic model.

    Args:
        kind: kind of content, in a word: a refusal begins with it and the path.
        documented: document that describes its form.

    Raises:
        ConfigurationError: the file is missing or not JSON, or a value is missing or out of range.
    """
    name = f"{kind} {path}"
    text = read_text_file(path, name, ConfigurationError)
    values = parse_json(text, name, ConfigurationError, f"see {documented} for the form")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or kind}: {problem['msg']}"
            for problem in error.errors()[:_MOST_PROBLEMS]
        )
        raise ConfigurationError(f"{name}: {problems}; see {documented} for the form") from error


def parse_json(text: str, where: str, failure: type[SpotlightError], advice: str) -> Any:
    """Return the value of a JSON text.

    Args:
        where: beginning of a refusal, such as a file and a line.
        failure: raised if the text is not JSON.
        advice: end of a refusal, which says what to do.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno} " if "\n" in text else ""  # of a row, `where` gives the line
        raise failure(f"{where}: not JSON ({error.msg} at {line}column {error.colno}); {advice}") from error
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, endless brackets
        raise failure(f"{where}: not JSON that can be read ({error}); {advice}") from error


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
