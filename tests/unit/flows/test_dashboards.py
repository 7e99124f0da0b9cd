"""A run's last line names the dashboard that runs, or the command that opens one on a free port."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flows.server import dashboards
from flows.server.dashboards import living_dashboard, noted_dashboard, way_to_dashboard
from flows.server.note import ServerNote
from storage.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_without_a_dashboard_it_is_the_command_and_a_free_port(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dashboards, "is_free", lambda port: True)
    assert way_to_dashboard(home) == "`spotlight ui`, then http://127.0.0.1:8501"
    monkeypatch.setattr(dashboards, "is_free", lambda port: port >= 8503)
    assert way_to_dashboard(home) == "`spotlight ui --port 8503`, then http://127.0.0.1:8503"
    assert not home.path.exists(), "looking must not make anything"


def test_the_one_that_runs_is_named(home: Home):
    with noted_dashboard(home, "0.0.0.0", 8777):
        assert way_to_dashboard(home) == "http://127.0.0.1:8777"
        with noted_dashboard(home, "127.0.0.1", 8778):  # a second one is not noted
            assert living_dashboard(home) == "http://127.0.0.1:8777"
    assert living_dashboard(home) is None
    with noted_dashboard(home, "127.0.0.1", 8777):  # both of two have begun at once: the last note counts
        (note,) = home.path.glob("dashboard-*.json")
        ServerNote("127.0.0.1", 8778).write(note)
    assert living_dashboard(home) == "http://127.0.0.1:8778"


def test_a_home_that_cannot_be_written_into_is_shown_all_the_same(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with noted_dashboard(Home(tmp_path / "file"), "127.0.0.1", 8777):
        pass


def test_the_command_notes_its_port_and_takes_no_setting_of_streamlit_from_a_person(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    named: list[str | None] = []
    monkeypatch.setenv("STREAMLIT_SERVER_BASE_URL_PATH", "elsewhere")

    class Process:
        def __init__(self, *_: object, env: dict[str, str], cwd: Path, **__: object) -> None:
            assert not any(name.startswith("STREAMLIT_") for name in env)
            assert env["SPOTLIGHT_HOME"] == str(home.path)
            assert not (cwd / ".streamlit").exists()

        def wait(self) -> int:
            named.append(living_dashboard(home))
            return 0

    monkeypatch.setattr(subprocess, "Popen", Process)
    assert dashboards.serve(home, 8639) == 0
    assert named == ["http://127.0.0.1:8639"]
    assert living_dashboard(home) is None
