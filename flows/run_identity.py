"""Names of runs."""

from __future__ import annotations

import re
import secrets
import time

from storage.environment import SIMULATED
from storage.errors import ConfigurationError, RunNotFoundError
from storage.home import Home
from storage.record.run_store import RunStore

LAST = "last"
"""The name for the newest run done here; simulated ones do not count."""

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def new_run_id(name: str) -> str:
    """Return `NAME-YYYYMMDD-HHMMSS-xxxx` in UTC: readable, ordered in time, unique."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


_PREFECT_FORM = re.compile(
    "(Awesome|Rustic|Small|Gorgeous|Fantastic|Sleek|Intelligent|Unbranded|Refined|Licensed|Generic|Practical|"
    "Ergonomic|Handcrafted|Tasty|Handmade|Incredible)-[A-Z][A-Za-z' -]{0,5}"
)
"""The form of Prefect's suggested Run Name: one of its adjectives, and an animal of at most six letters."""


def is_made_up(name: str) -> bool:
    """Return True if Prefect made up a flow run's name: its form (Tasty-Akita) or its server (brave-lion)."""
    if _PREFECT_FORM.fullmatch(name):
        return True
    from coolname.data import config  # what the server chooses from

    words = {word for kind in config.values() if isinstance(kind, dict) for word in kind.get("words", ())}
    parts = name.split("-")
    return len(parts) > 1 and words.issuperset(parts)


def find_run(home: Home, text: str) -> str:
    """Return a run's identifier from the user's input: the identifier, its beginning, or `last`.

    A text that no run begins with is returned as is: the caller refuses it and suggests similar names.

    Raises:
        ConfigurationError: several runs begin with the text.
        RunNotFoundError: the text is `last`, and there is no run.
    """
    if not text or text in home.run_ids():
        return text
    rows = RunStore(home).runs()
    if text == LAST:
        done = [row.run_id for row in rows if SIMULATED not in row.environment]
        if not done:
            raise RunNotFoundError("there is no run yet; start one with `spotlight train`")
        return done[0]
    found = [row.run_id for row in rows if row.run_id.startswith(text)]
    if len(found) > 1:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise ConfigurationError(
            f"{len(found)} runs begin with {text!r}: {', '.join(found[:3])}{more}; give more of it"
        )
    return found[0] if found else text


def check_run_id(run_id: str) -> None:
    """Refuse an identifier that cannot name a folder of checkpoints.

    Raises:
        ConfigurationError: it has forbidden characters, is empty or too long.
    """
    if run_id == LAST:
        raise ConfigurationError(f"run identifier {LAST!r} names the newest run in commands; choose another")
    if not _RUN_ID.fullmatch(run_id):
        raise ConfigurationError(
            f"run identifier {run_id!r} cannot name a folder; use letters, digits, `_`, `.` and `-`, at most "
            "128, the first a letter or a digit"
        )
