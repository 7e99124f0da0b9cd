"""How many examples of a property are tried: few in `make test`, more in `make test-all`."""

from __future__ import annotations

from hypothesis import settings


def examples(times: float) -> settings:
    """So many times as many as the profile has: more where they are quick, fewer where each takes long."""
    return settings(max_examples=max(1, round(times * settings().max_examples)))
