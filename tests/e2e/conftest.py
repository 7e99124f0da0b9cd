"""The home that the pages of the dashboard look at, and where pictures of pages go."""

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


@pytest.fixture
def album(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where a test puts its pictures, each under the same name every time: `--pictures FOLDER` keeps them."""
    kept = request.config.getoption("--pictures")
    folder = Path(kept) if kept else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder
