"""The home that the pages of the dashboard look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.home import Home
from storage.run_store import RunStore


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """Its runs; none at first."""
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    return RunStore(Home(tmp_path))
