"""What other users of a machine could read."""

from __future__ import annotations

from pathlib import Path

from storage.home import is_open_to_others


def open_to_others(folder: Path) -> list[Path]:
    """The folder, and all files and folders below it, to which others than its owner have any right."""
    return [path for path in (folder, *folder.rglob("*")) if is_open_to_others(path)]
