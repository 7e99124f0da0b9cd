"""The home that the pages of the dashboard look at, and where pictures of pages go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.home import Home
from storage.record.run_store import RunStore
from tests.browser import Album, NewPage, chromium, dashboard
from tests.sample_run import write_sample_run


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """Its runs; none at first."""
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    return RunStore(Home(tmp_path))


@pytest.fixture(scope="session")
def recorded_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Two finished runs to be looked at, not written to; their files are of the group `recorded`.

    `glyphs-1` has 40 iterations. `explored`, the newer one, has 22, whose seeds were chosen by stale drafts.
    """
    home = Home(tmp_path_factory.mktemp("recorded"))
    store = RunStore(home)
    write_sample_run(store, "glyphs-1", iterations=40)
    write_sample_run(store, "explored", iterations=22, exploring=True)
    return home


@pytest.fixture
def recorded(recorded_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages look at `recorded_home`."""
    monkeypatch.setenv("SPOTLIGHT_HOME", str(recorded_home.path))


@pytest.fixture(scope="session")
def url(recorded_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a dashboard of `recorded_home`."""
    log = tmp_path_factory.mktemp("dashboard") / "dashboard.log"
    with dashboard(recorded_home.path, log) as served:
        yield served.url
    assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def new_page() -> Iterator[NewPage]:
    """Opens pages of a real browser, which is started once a file."""
    with chromium() as opened:
        yield opened


@pytest.fixture
def album(request: pytest.FixtureRequest) -> Album:
    """The pictures that a test takes, each under the same name every time: `--pictures FOLDER` keeps them."""
    kept = request.config.getoption("--pictures")
    folder = Path(kept) if kept else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return Album(folder)
