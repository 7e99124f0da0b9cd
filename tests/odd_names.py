"""Names of folders whose characters mean something in a URL."""

from __future__ import annotations

ODD_NAMES = ("50% off", "a%20b", "a?b=c", "a#b", "ä ;&+b", "a::b", "a:b@c")
