"""Names of runs."""

from __future__ import annotations

import re
import secrets
import time

from storage.errors import ConfigurationError

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def new_run_id(name: str) -> str:
    """`NAME-YYYYMMDD-HHMMSS-xxxx` in UTC: readable, ordered in time, unique."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


_PREFECT_FORM = re.compile(
    "(Awesome|Rustic|Small|Gorgeous|Fantastic|Sleek|Intelligent|Unbranded|Refined|Licensed|Generic|Practical|"
    "Ergonomic|Handcrafted|Tasty|Handmade|Incredible)-[A-Z][A-Za-z' -]{0,5}"
)
"""What Prefect's form fills in as Run Name: one of its adjectives, and an animal of at most six letters."""


def is_made_up(name: str) -> bool:
    """Whether Prefect chose the name of a flow run: its form (Tasty-Akita), or its server (brave-lion)."""
    if _PREFECT_FORM.fullmatch(name):
        return True
    from coolname.data import config  # what the server chooses from

    words = {word for kind in config.values() if isinstance(kind, dict) for word in kind.get("words", ())}
    parts = name.split("-")
    return len(parts) > 1 and words.issuperset(parts)


def check_run_id(run_id: str) -> None:
    """Refuse an identifier that cannot name a folder of checkpoints.

    Raises:
        ConfigurationError: it holds other characters, is empty or too long.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise ConfigurationError(
            f"run identifier {run_id!r} cannot name a folder; use letters, digits, `_`, `.` and `-`, at most "
            "128, the first a letter or a digit"
        )
