"""Finding, refusing and not finding the Prefect server; none is started here."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from flows.server import local_server
from flows.server.dashboards import noted_dashboard
from flows.server.local_server import LocalServer, for_client, without_prefect
from flows.server.loss import leave, result_without_server
from flows.server.note import home_password, password_file
from flows.server.prefect_server import is_healthy, prefect_server
from flows.server.process import recorded_first, serve
from storage.errors import CheckpointError, ServerError
from storage.home import DASHBOARD_URL_VARIABLE, Home
from storage.record.run_store import RunStore
from tests.answering import answering
from tests.homes_server import TOKEN, noted_server
from tests.running_up import free_port

ROOT = Path(__file__).resolve().parents[3]


def test_a_server_that_ends_records_the_events_that_wait():
    from prefect.server.utilities.messaging.memory import Consumer, MemoryMessage, Topic

    recorded, at_the_end = [], []

    async def record(message: Any) -> None:
        await asyncio.sleep(0.01)  # a transaction
        recorded.append(message.data)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "lifespan.shutdown"
        at_the_end.extend(recorded)

    async def shutdown() -> dict[str, str]:
        return {"type": "lifespan.shutdown"}

    async def ended() -> None:
        consumer = Consumer("events", concurrency=1)
        recorder = asyncio.create_task(consumer.run(record))
        for number in range(40):
            message = MemoryMessage(data=str(number), attributes={})
            await Topic.by_name("events").publish(message)
        await recorded_first(application)({"type": "lifespan"}, shutdown, None)
        recorder.cancel()
        await consumer.cleanup()

    asyncio.run(ended())
    assert at_the_end == [str(number) for number in range(40)]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{closed}/api", "nonsense", "http://127.0.0.1:port/api", "ftp://127.0.0.1/api"]
)
def test_nobody_is_healthy_where_nobody_answers(url: str):
    assert not is_healthy(url.format(closed=free_port()))


def test_a_named_server_that_does_not_answer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url = f"http://127.0.0.1:{free_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    said = f"PREFECT_API_URL={url}; start it, or unset the variable"
    with pytest.raises(ServerError, match=said), prefect_server(Home(tmp_path)):
        pass
    assert os.environ["PREFECT_API_URL"] == url
    assert not list(tmp_path.iterdir()), "no server of ours was begun"


def test_a_named_server_that_refuses_our_requests_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    refused = httpx.HTTPStatusError(
        "401", request=httpx.Request("GET", "http://a"), response=httpx.Response(401)
    )
    with answering(200, TOKEN) as url:  # without the password a server of Prefect's says that it is well
        monkeypatch.setenv("PREFECT_API_URL", f"{url}/api")
        with (
            pytest.raises(ServerError, match=r"could not be used: 401; .* PREFECT_API_AUTH_STRING"),
            prefect_server(Home(tmp_path)),
        ):
            raise refused


def test_prefect_talks_to_the_server_of_now_also_where_it_was_imported_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("PREFECT_CLIENT_MAX_RETRIES", "1")
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        monkeypatch.delenv(name, raising=False)
    import prefect.context
    from prefect.settings import get_current_settings

    monkeypatch.setattr(prefect.context, "GLOBAL_SETTINGS_CONTEXT", prefect.context.root_settings_context())
    for name in ("first", "second"):
        home = Home(tmp_path / name)
        with noted_server(home) as note, prefect_server(home), ThreadPoolExecutor(1) as thread:
            # In a thread, as those of Prefect's own that begin meanwhile.
            seen = [get_current_settings(), thread.submit(get_current_settings).result()]
            assert [one.api.url for one in seen] == [note.api_url] * 2
            assert seen[0].home == tmp_path / "prefect"
    assert get_current_settings().api.url is None


def test_a_client_has_the_settings_of_the_home_s_server_and_the_person_s_for_logs():
    given = {"A": "b", "PREFECT_API_KEY": "of another server", "PREFECT_LOGGING_LEVEL": "DEBUG"}
    settings = {"PREFECT_API_URL": "http://127.0.0.1:9/api"}
    assert for_client(given, settings) == settings | {"A": "b", "PREFECT_LOGGING_LEVEL": "DEBUG"}


def test_flow_runs_link_to_a_dashboard_that_runs_without_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(DASHBOARD_URL_VARIABLE, raising=False)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.delitem(sys.modules, "prefect", raising=False)  # whose settings stay as they are
    home = Home(tmp_path).ensure()
    with noted_server(home), noted_dashboard(home, "127.0.0.1", 8639), prefect_server(home):
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


class Rounds:
    """The end of `kept_alive`, which comes after some pauses; no time passes but in them."""

    def __init__(self, rounds: int) -> None:
        self.pauses: list[float] = []
        self._rounds = rounds

    def wait(self, pause_s: float) -> bool:
        if len(self.pauses) == self._rounds:
            return True
        self.pauses.append(pause_s)
        return False

    def monotonic(self) -> float:
        return sum(self.pauses)


def pauses(monkeypatch: pytest.MonkeyPatch, home: Home, dead: Callable[[int], bool], rounds: int) -> Rounds:
    """Keep a server that is `dead` in some of the rounds; the first restart of all fails."""
    over: Any = Rounds(rounds)
    with noted_server(home):
        server = LocalServer(home)

    def renew(self: LocalServer) -> None:
        restarts.append(over.monotonic())
        if len(restarts) == 1:
            raise ServerError("the port is taken")

    restarts: list[float] = []
    ended = property(lambda self: "it ended" if dead(len(over.pauses)) else None)
    monkeypatch.setattr(LocalServer, "ended", ended)
    monkeypatch.setattr(LocalServer, "_renew", renew)
    monkeypatch.setattr(local_server, "time", SimpleNamespace(monotonic=over.monotonic))
    server._keep_alive(over)
    return over


def test_a_server_that_dies_again_and_again_is_restarted_ever_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = pauses(monkeypatch, Home(tmp_path), lambda look: True, 11)
    assert kept.pauses == [0.5, 0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_one_failure_of_a_restart_is_repeated_at_once_and_forgotten_in_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = pauses(monkeypatch, Home(tmp_path), lambda look: look in (1, 2, 63, 64), 66)
    assert kept.pauses == [0.5, 0.5, *[1.0] * 60, 0.5, 0.5, 1.0, 1.0]


def test_a_port_that_cannot_be_had_is_named_though_any_would_do(tmp_path: Path):
    with pytest.raises(ServerError, match=r"port 4200 on 192\.0\.2\.1 cannot be listened on"):
        serve(Home(tmp_path).ensure(), "192.0.2.1", 4200, False, ())


LOOK = """
import re
from prefect.settings import get_current_settings
found = sorted(get_current_settings().to_environment_variables().items())
print(re.sub(r"127.0.0.1:[0-9]+", "the server", str(found)))
"""

RUN = f"""
from pathlib import Path
from flows.server.prefect_server import prefect_server
from storage.home import Home
from tests.homes_server import TOKEN, noted_server
home = Home(Path.home() / "home")
with noted_server(home), prefect_server(home):
    exec({LOOK!r})
"""

FILES = {
    "prefect.toml": '[tasks]\ndefault_persist_result = true\n[client.custom_headers]\nsecret = "x"\n',
    ".env": "PREFECT_TASKS_DEFAULT_RETRY_DELAY_SECONDS=99\nPREFECT_RESULTS_PERSIST_BY_DEFAULT=true\n",
    "pyproject.toml": '[tool.prefect.logging]\nlevel = "DEBUG"\n',
}


def printed(command: list[str], folder: Path) -> str:
    """Return what a child in the folder prints last; its home and modules lie beside the folder."""
    home = folder.parent
    own = {
        "HOME": str(home),
        "PYTHONPATH": f"{home}:{ROOT}",
        "PREFECT_PROFILES_PATH": f"{home}/profiles.toml",
    }
    said = subprocess.check_output(command, env=without_prefect(os.environ) | own, cwd=folder, text=True)
    return said.splitlines()[-1]  # lines before it have times


def test_the_files_of_the_current_folder_do_not_count(tmp_path: Path):
    command = [sys.executable, "-P", "-c", RUN]
    (tmp_path / "look.py").write_text(LOOK)
    empty, full, torn = (tmp_path / name for name in ("empty", "full", "torn"))
    for folder, files in ((empty, {}), (full, FILES), (torn, {"prefect.toml": "[torn"})):
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    assert printed(command, full) == printed(command, empty) != ""
    assert printed(command, torn) == printed(command, empty)
    assert printed([sys.executable, "-P", "-m", "look"], full) != printed(command, full)


def test_all_that_ask_at_once_get_the_same_and_other_homes_another(tmp_path: Path):
    together = threading.Barrier(8)

    def ask(name: str) -> str:
        together.wait()
        return home_password(Home(tmp_path / name))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, "aaaabbbb"))
    assert len(set(found)) == 2
    assert len(found[0].removeprefix("spotlight:")) == 64
    assert [file.name for file in (tmp_path / "a" / "prefect").iterdir()] == ["password"]


def test_only_its_owner_can_read_it_also_where_that_was_changed(tmp_path: Path):
    password, file = home_password(Home(tmp_path)), password_file(Home(tmp_path))
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    assert home_password(Home(tmp_path)) == password
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_private_one_is_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    password, file = home_password(Home(tmp_path)), password_file(Home(tmp_path))
    file.chmod(0o400)
    for name in ("open", "chmod", "link"):  # and in a folder that is only read
        monkeypatch.setattr(os, name, lambda *_, **__: pytest.fail("it was to be written"))
    assert home_password(Home(tmp_path)) == password
    assert file.stat().st_mode & 0o777 == 0o400


@pytest.mark.parametrize(
    "text", ["", "spotlight:", "short:word", "no-colon-in-these-thirty-characters", "é:" + 20 * "x"]
)
def test_a_file_without_a_password_is_refused(tmp_path: Path, text: str):
    file = password_file(Home(tmp_path))
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ServerError, match=r"does not hold a password .* delete it"):
        home_password(Home(tmp_path))


def test_one_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "prefect").write_text("no folder")
    with pytest.raises(ServerError, match="no server starts without one"):
        home_password(Home(tmp_path))


GONE = httpx.ConnectError("Connection refused")

# A worker with one event for a server that does not exist: Prefect would retry, and delay its exit.
HOLDS_AN_EVENT = """
import flows, flows.server.loss as loss
from prefect.events import emit_event
loss._HAND_OVER_S = 0.5
emit_event("e", resource={"prefect.resource.id": "r"})
loss.hand_over()
print("said", end="")
loss.leave(7)
"""


@pytest.mark.usefixtures("run_r")
def test_a_finished_run_has_its_result(store: RunStore):
    store.set_summary("r", {"score_after": 0.5})
    store.set_status("r", "finished")
    assert result_without_server(store, "r", GONE) == {"score_after": 0.5}


@pytest.mark.usefixtures("run_r")
def test_an_unfinished_run_says_how_to_go_on(store: RunStore):
    store.set_status("r", "failed", "whatever")
    with pytest.raises(ServerError, match=r"refused.* is failed after iteration 0: .*`spotlight resume r`"):
        result_without_server(store, "r", GONE)


@pytest.mark.usefixtures("run_r")
def test_what_ended_the_run_first_is_said_where_the_server_then_fails_too(store: RunStore):
    full = CheckpointError("cannot save checkpoint: No space left on device")
    failed = httpx.HTTPError("500 Internal Server Error")
    failed.__context__ = full
    with pytest.raises(CheckpointError) as raised:
        result_without_server(store, "r", failed)
    assert raised.value is full


def test_a_run_that_never_began_says_so(store: RunStore):
    store.home.ensure()
    with pytest.raises(ServerError, match="before run 'r' began"):
        result_without_server(store, "r", GONE)


def test_a_server_that_refuses_our_requests_has_not_gone_away(store: RunStore):
    store.home.ensure()
    refused = httpx.HTTPStatusError(
        "401", request=httpx.Request("GET", "http://a"), response=httpx.Response(401)
    )
    with pytest.raises(
        ServerError, match=r"^the Prefect server refused a request \(401; .*_AUTH_STRING\) be"
    ):
        result_without_server(store, "r", refused)


def test_a_full_disk_is_named_where_the_server_only_fails(store: RunStore, monkeypatch: pytest.MonkeyPatch):
    store.home.ensure()
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=4096))
    with pytest.raises(ServerError, match=f"no space is left for {store.home.path}: free disk space"):
        result_without_server(store, "r", httpx.HTTPError("500 Internal Server Error"))


@pytest.mark.parametrize("code", [0, 2])
def test_leaving_with_nothing_held_is_an_ordinary_exit(code: int):
    with pytest.raises(SystemExit) as ended:
        leave(code)
    assert ended.value.code == code


def test_an_event_that_nobody_takes_does_not_hold_the_process(tmp_path: Path):
    environment = os.environ | {"PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_HOME": str(tmp_path)}
    answer = subprocess.run(
        [sys.executable, "-c", HOLDS_AN_EVENT], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (answer.returncode, answer.stdout) == (7, "said"), answer.stderr


def test_a_ping_that_fails_as_the_server_goes_away_leaves_no_traceback(caplog: pytest.LogCaptureFixture):
    logger = logging.getLogger("websockets.client")
    logger.error("keepalive ping failed", exc_info=(OSError, OSError("gone"), None))
    logger.error("something else")
    assert [record.message for record in caplog.records] == ["something else"]
