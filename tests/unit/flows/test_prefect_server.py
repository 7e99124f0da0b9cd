"""Finding, refusing and not finding the Prefect server; none is started here."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.server import local_server
from flows.server import prefect_server as module
from flows.server.children import Child
from flows.server.dashboards import noted_dashboard
from flows.server.local_server import LocalServer, for_client
from flows.server.note import ServerNote
from flows.server.prefect_server import is_healthy, prefect_server
from storage.errors import ServerError
from storage.home import DASHBOARD_URL_VARIABLE, Home


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{closed}/api", "nonsense", "http://127.0.0.1:port/api", "ftp://127.0.0.1/api"]
)
def test_nobody_is_healthy_where_nobody_answers(url: str):
    assert not is_healthy(url.format(closed=closed_port()))


def test_a_named_server_that_does_not_answer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url = f"http://127.0.0.1:{closed_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    with pytest.raises(ServerError) as refused, prefect_server(Home(tmp_path)):
        pass
    assert url in str(refused.value)
    assert "start it, or unset the variable" in str(refused.value)
    assert os.environ["PREFECT_API_URL"] == url
    assert not list(tmp_path.iterdir()), "no server of ours was begun"


def test_a_named_server_that_answers_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://10.0.0.5:4200/api")
    monkeypatch.setattr(module, "is_healthy", lambda url: True)
    with prefect_server(Home(tmp_path)) as ui_url:
        assert ui_url == "http://10.0.0.5:4200"
    assert os.environ["PREFECT_API_URL"] == "http://10.0.0.5:4200/api"


class DyingServer(LocalServer):
    """A home's server that is dead whenever it is looked at; none is started."""

    def __init__(self, home: Home) -> None:
        self._home, self.note, self.starts = home, ServerNote(0, "127.0.0.1", 9), 0

    @property
    def ended(self) -> str | None:
        """It has."""
        return "the server ended"

    def _start(self, where: ServerNote, exact: bool) -> ServerNote:
        self.starts += 1
        return where


class Looks(threading.Event):
    """An event that is set after so many waits, none of which takes time."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def wait(self, timeout: float | None = None) -> bool:
        """Return True if it is set."""
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize(("lives_s", "starts"), [(1.0, 6), (601.0, 20)])
def test_only_deaths_in_a_row_give_a_server_up(
    lives_s: float, starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock = itertools.count(0.0, lives_s)
    monkeypatch.setattr(local_server, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    server = DyingServer(Home(tmp_path))
    server._keep_alive(Looks(40))
    assert server.starts == starts


def test_the_code_of_our_dead_server_is_not_said_of_one_that_another_process_started(tmp_path: Path):
    server = LocalServer.__new__(LocalServer)
    server._home, server.log = Home(tmp_path), tmp_path / "server.log"
    server._child = Child("Prefect server", [sys.executable, "-c", "exit(3)"], os.environ, server.log)
    server.note = ServerNote(server._child.process.pid, "127.0.0.1", 9)
    assert server.ended == f"the Prefect server ended with code 3 (log: {server.log})"
    server.note = ServerNote(1, "127.0.0.1", 9)
    assert server.ended == f"the Prefect server ended (log: {server.log})"


class SilentServer:
    """Takes the place of a home's server; nothing listens."""

    def __init__(self, home: Home) -> None:
        self.note = SimpleNamespace(ui_url=f"http://127.0.0.1:9/{home.path.name}")
        self.client_environment = {
            "PREFECT_API_URL": f"{self.note.ui_url}/api",
            "PREFECT_API_AUTH_STRING": home.path.name,
            "PREFECT_HOME": str(home.path / "not taken: a person has chosen"),
        }

    def wait_ready(self) -> None:
        """It is."""

    def kept_alive(self) -> contextlib.AbstractContextManager[None]:
        """Nothing to do."""
        return contextlib.nullcontext()

    def stop(self) -> None:
        """Nothing to do."""


def test_prefect_talks_to_the_server_of_now_also_where_it_was_imported_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("PREFECT_CLIENT_MAX_RETRIES", "1")
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "LocalServer", SilentServer)
    import prefect.context
    from prefect.settings import get_current_settings

    monkeypatch.setattr(prefect.context, "GLOBAL_SETTINGS_CONTEXT", prefect.context.root_settings_context())
    seen: list[str | None] = []

    def look() -> None:
        seen.append(get_current_settings().api.url)

    for name in ("first", "second"):
        with prefect_server(Home(tmp_path / name)):
            assert get_current_settings().home == tmp_path / "prefect"
            look()
            thread = threading.Thread(target=look)  # as those of Prefect's own that begin meanwhile
            thread.start()
            thread.join()
    look()
    first, second = (f"http://127.0.0.1:9/{name}/api" for name in ("first", "second"))
    assert seen == [first, first, second, second, None]


def test_a_client_has_the_settings_of_the_home_s_server_and_the_person_s_for_logs():
    given = {"A": "b", "PREFECT_API_KEY": "of another server", "PREFECT_LOGGING_LEVEL": "DEBUG"}
    settings = {"PREFECT_API_URL": "http://127.0.0.1:9/api"}
    assert for_client(given, settings) == settings | {"A": "b", "PREFECT_LOGGING_LEVEL": "DEBUG"}


def test_flow_runs_link_to_a_dashboard_that_runs_without_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(DASHBOARD_URL_VARIABLE, raising=False)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(module, "LocalServer", SilentServer)
    monkeypatch.delitem(sys.modules, "prefect", raising=False)  # whose settings stay as they are
    home = Home(tmp_path).ensure()
    with noted_dashboard(home, "127.0.0.1", 8639), prefect_server(home):
        assert os.environ[DASHBOARD_URL_VARIABLE] == "http://127.0.0.1:8639"
    assert DASHBOARD_URL_VARIABLE not in os.environ


def test_a_server_that_ends_while_starting_names_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "a person's own")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.delitem(sys.modules, "prefect", raising=False)  # another test may have imported it
    message = r"while starting, the Prefect server ended with code 1 \(log: .*prefect-server\.log"
    with pytest.raises(ServerError, match=message), prefect_server(Home(tmp_path / "home")):
        pass
    assert "PREFECT_API_URL" not in os.environ
    assert os.environ["PREFECT_API_AUTH_STRING"] == "a person's own"
