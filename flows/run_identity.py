"""Names of runs."""

from __future__ import annotations

import secrets
import time


def new_run_id(name: str) -> str:
    """`NAME-YYYYMMDD-HHMMSS-xxxx` in UTC: readable, ordered in time, unique."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
