"""What `spotlight up` refuses of the state of the machine; other options are in `tests/bad_inputs.jsonl`."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import flows.progress as progress
from flows.deployed import up as module
from flows.deployed.schedule import Nightly
from flows.deployed.up import UpOptions, up
from flows.server.children import Child
from flows.server.dashboards import serve
from flows.server.password import password_file
from flows.server.ports import is_loopback, reachable, refuse_taken_port
from storage.errors import ConfigurationError, ServerError
from storage.home import Home
from tests.sample_login import write_login


@pytest.fixture(autouse=True)
def no_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_taken_port_is_refused_with_the_option_that_changes_it(taken: int, tmp_path: Path):
    with pytest.raises(ServerError, match=rf"port {taken} on 127\.0\.0\.1 is in use.*--server-port"):
        up(Home(tmp_path), UpOptions(server_port=taken, dashboard_port=free()))
    with pytest.raises(ServerError, match=rf"port {taken} on 127\.0\.0\.1 is in use.*--ui-port"):
        up(Home(tmp_path), UpOptions(server_port=free(), dashboard_port=taken))
    assert (tmp_path / "up.json").read_text() == ""


def test_the_one_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_START_LIMIT_S", 0.0)
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    supervisor = module._Supervisor(Home(tmp_path).ensure(), UpOptions(), threading.Event())
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    try:
        for name in (module.DASHBOARD, module.DEPLOYMENTS):
            supervisor._children.append(Child(name, sleeper, os.environ, tmp_path / f"{name}.log"))
        with pytest.raises(ServerError, match="the dashboard did not answer within 0 s"):
            supervisor._wait(module.DASHBOARD, lambda: False)
    finally:
        supervisor.stop()


def test_a_free_port_is_not_refused():
    refuse_taken_port(free(), "never said")


def test_an_address_that_others_reach_is_warned_of(
    taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said: list[str] = []
    monkeypatch.setattr(progress.reporter(), "note", said.append)
    with pytest.raises(ServerError):  # goes no further than the port
        up(write_login(Home(tmp_path)), UpOptions(server_port=taken, dashboard_port=free(), host="0.0.0.0"))
    assert len(said) == 1
    assert said[0].startswith("warning: --host 0.0.0.0: other machines reach the dashboard")


def test_no_address_is_listened_on_without_a_password(tmp_path: Path):
    password_file(Home(tmp_path)).mkdir(parents=True)
    with pytest.raises(ServerError, match="no server starts without one"):
        up(write_login(Home(tmp_path)), UpOptions(server_port=free(), dashboard_port=free(), host="0.0.0.0"))
    assert not (tmp_path / "up.json").exists()


def test_which_addresses_are_this_machine_alone():
    assert is_loopback("127.0.0.1")
    assert not is_loopback("0.0.0.0")
    assert reachable("0.0.0.0") == "127.0.0.1"
    assert reachable("10.1.2.3") == "10.1.2.3"


@pytest.mark.parametrize(
    ("cron", "says"), [("0 2 * sun *", "'sun' is no month"), ("0 2 * * Jan", "'Jan' is no day of the week")]
)
def test_a_name_in_a_field_of_others_is_refused(cron: str, says: str):
    with pytest.raises(ConfigurationError, match=says):
        Nightly(cron=cron)
    assert Nightly(cron="0 2 * Jan sun-tue").cron == "0 2 * Jan sun-tue"


def test_a_schedule_is_off_unless_asked_for():
    assert "--schedule" not in Nightly().arguments()
    assert Nightly(active=True, cron="5 3 * * 1").arguments() == [
        "--cron", "5 3 * * 1", "--timezone", "UTC", "--schedule",
    ]  # fmt: skip
    assert Nightly().in_words().startswith("off (")
    assert Nightly(active=True).in_words() == "on, '0 2 * * *' in UTC"


def test_the_dashboard_alone_refuses_the_same(tmp_path: Path, taken: int):
    home = Home(tmp_path)
    with pytest.raises(ConfigurationError, match="--host nowhere is no IPv4 address"):
        serve(home, free(), "nowhere")
    with pytest.raises(ConfigurationError, match=r"--allow-host 'http://a\.example' is no host name"):
        serve(home, free(), names=["http://a.example"])
    with pytest.raises(ConfigurationError, match=r"--host 0\.0\.0\.0 would show all runs"):
        serve(home, free(), "0.0.0.0")
    with pytest.raises(ServerError, match=rf"port {taken} on 127\.0\.0\.1 is in use.*spotlight ui --port"):
        serve(home, taken)
