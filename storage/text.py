"""What counts as text here: what can be written to a file, a database and a command line alike."""

from __future__ import annotations

import re

_UNWRITABLE = re.compile("[\0\ud800-\udfff]")

NOT_TEXT = "must hold neither NUL nor half a surrogate pair"
"""What a refusal says."""


def is_text(text: str) -> bool:
    """Whether it has no NUL, at which C programs cut it off, and no lone surrogate, which is no Unicode."""
    return _UNWRITABLE.search(text) is None
