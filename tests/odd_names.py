"""Names of folders whose characters mean something in a URL, a pattern or a text of SQL."""

from __future__ import annotations

ODD_NAMES = (
    "50% off", "a%20b", "a?b=c", "a#b", "ä ;&+b", "a::b", "a:b@c", "a\\b", "a[b]c", "a*b", "a'b",
)  # fmt: skip

NO_HOME = "?%\\"
"""Signs that the path of a home may not have."""
