"""Damages a DuckDB file as a bad disk does."""

from __future__ import annotations

from pathlib import Path

from storage.database.database import Database
from storage.errors import DatabaseDamagedError

BLOCK_BYTES = 262_144
HEADER_BYTES = 12_288


def overwrite_a_page(path: Path) -> None:
    """Overwrite the first page, from the middle of the file on, that makes a difference."""
    good = path.read_bytes()
    pages = (len(good) - HEADER_BYTES) // BLOCK_BYTES
    for page in sorted(range(pages), key=lambda page: abs(page - pages // 2)):
        at = HEADER_BYTES + page * BLOCK_BYTES
        path.write_bytes(good[: at + 64] + b"\xa5" * 4096 + good[at + 64 + 4096 :])
        try:
            Database(path).check()
        except DatabaseDamagedError:
            return
    raise AssertionError("no page makes a difference")
