"""`spotlight up`: Prefect server, deployments and dashboard as children, until one dies or a person ends it.

A home's `up` holds a lock on `up.json`, where it notes itself. Its children end with it. They and their
descendants carry the home's path in their environment, by which hung ones are found. `down` holds the lock
while it ends those.
"""

from __future__ import annotations

import calendar
import json
import os
import re
import signal
import socket
import threading
import time
import zoneinfo
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

import psutil

from flows.progress import reporter
from flows.server.children import ENDING_S, Child, end_processes
from flows.server.dashboards import check_login, noted_dashboard, start_dashboard
from flows.server.local_server import LocalServer, for_client
from flows.server.note import (
    ServerNote,
    check_address,
    home_password,
    living_note,
    living_server,
    password_file,
    reachable,
    read_note,
    refuse_taken_port,
    sole_holder,
)
from flows.server.prefect_server import is_healthy
from storage.errors import ConfigurationError, ServerError, quoted
from storage.home import DASHBOARD_URL_VARIABLE, FOLDER_VARIABLE, HOME_VARIABLE, UP_VARIABLE, Home
from storage.processes import SAFE_PATH, python_command
from storage.record.files import locked
from storage.text import is_loopback

SERVING_MODULE = "flows.deployed.serving"

_START_LIMIT_S = 180.0
_LOOK_S = 0.3
_PAGES = "/v2"
"""The path of the Prefect UI that its first page leads to; an address without it may open the other UI."""

_CRON_FIELDS = {
    "minute": (0, 59, ""),
    "hour": (0, 23, ""),
    "day of the month": (1, 31, ""),
    "month": (1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"),
    "day of the week": (0, 7, "sun mon tue wed thu fri sat"),
}
"""Minimum and maximum of each field of a schedule, and the names allowed instead."""

Schedule = tuple[bool, str, str]
"""The arguments of `flows.deployed.serving.deployments`: active, cron, time zone."""


def up(home: Home, own: ServerNote, ui_port: int, runs_at_once: int, schedule: Schedule) -> int:
    """Start all three, print their addresses, and wait for Ctrl-C, SIGTERM or the death of one.

    Args:
        own: where Prefect's server and the dashboard listen, and what names they answer to.
        ui_port: the dashboard's port.
        runs_at_once: flow runs that may run at the same time; more wait.
        schedule: schedule of the reproducibility runs.

    Returns:
        Exit code: 0 if a person ended it, 1 if one of the three died.

    Raises:
        ConfigurationError, ServerError: an unusable value, port or home; or one of the three did not start.
    """
    _check(home, own, ui_port, schedule)
    with sole_supervisor(home, own), _ending_asked(home) as asked:
        ports = {"--ui-port": ui_port}
        if living_server(home) is None:  # a run of this home may have started it already
            ports["--server-port"] = own.port
        for name, port in ports.items():
            refuse_taken_port(port, f"choose another with `spotlight up {name}`", own.host)
        with noted_dashboard(home, own.host, ui_port), ExitStack() as ends:
            return _serve(home, own, ui_port, (schedule, runs_at_once), asked, ends)


def _serve(
    home: Home,
    own: ServerNote,
    ui_port: int,
    said: tuple[Schedule, int],
    asked: threading.Event,
    ends: ExitStack,
) -> int:
    """Do the work of `up`; `ends` gets what ends the three: the deployments with their runs first."""
    ready = home.path / "up.ready"
    ready.unlink(missing_ok=True)
    ends.callback(ready.unlink, missing_ok=True)
    ends.callback(lambda: end_processes(left_of(home)))  # descendants of a killed child
    mark = {UP_VARIABLE: str(home.path.resolve()), HOME_VARIABLE: str(home.path)}
    server = LocalServer(home, own, mark)
    ends.callback(server.stop)
    children: list[Child] = []

    def dead() -> str | None:
        return server.lost() or next(filter(None, (child.ended for child in children)), None)

    if not _wait(server.is_ready, asked, dead, home):
        return 0
    dashboard_url = f"http://{reachable(own.host)}:{ui_port}"
    links = {DASHBOARD_URL_VARIABLE: dashboard_url}  # a person's own, such as a proxy's, goes first
    environment = links | for_client(os.environ, server.client_environment) | mark
    log = home.logs / "dashboard.log"
    children.append(start_dashboard(home, ui_port, own.host, own.names, environment, log))
    ends.callback(children[0].stop)
    # Prefect reads the settings of its current folder: it is not the person's, to which a run returns.
    deployments = Child(
        "deployments", python_command("-m", SERVING_MODULE, json.dumps([*said, str(ready)])),
        {**environment, **SAFE_PATH, "PREFECT_LOGGING_LEVEL": "INFO", FOLDER_VARIABLE: os.getcwd()},
        home.logs / "deployments.log", patience_s=ENDING_S, folder=home.prefect,
    )  # fmt: skip
    children.append(deployments)
    ends.callback(deployments.stop)
    if not _wait(lambda: ready.exists() and is_healthy(f"{dashboard_url}/_stcore"), asked, dead, home):
        return 0
    reporter().note(where_to_look(home, own, dashboard_url, said[0]))
    while not asked.wait(_LOOK_S):
        if why := dead():
            reporter().note(f"error: {why}\nending the others")
            return 1
    reporter().note("stopping; active runs save their work (Ctrl-C again stops at once)")
    return 0


def _wait(
    ready: Callable[[], bool], asked: threading.Event, dead: Callable[[], str | None], home: Home
) -> bool:
    """Wait until children are ready; return False if asked to end."""
    deadline = time.monotonic() + _START_LIMIT_S
    while not ready():
        if said := dead():
            raise ServerError(said)
        if time.monotonic() > deadline:
            raise ServerError(f"not all answered within {_START_LIMIT_S:g} s; see the logs in {home.logs}")
        if asked.wait(_LOOK_S):
            return False
    return True


@contextmanager
def _ending_asked(home: Home) -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set; a second signal kills the children."""
    asked = threading.Event()

    def ask(_: int, __: FrameType | None) -> None:
        if asked.is_set():
            for process in left_of(home):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def down(home: Home) -> list[str]:
    """End a home's `spotlight up`, or the processes that a crashed one left.

    Returns:
        The ended processes, as text; empty if there were none.

    Raises:
        ServerError: it runs on another machine.
    """
    file, ended = state_file(home), []
    _refuse_other_machine(home)
    if (note := living_note(file)) is not None:
        ended.append(f"up (process {note.pid})")
        with suppress(ProcessLookupError):
            os.kill(note.pid, signal.SIGTERM)
    if not file.exists():
        return []
    with sole_holder(file, 2 * ENDING_S, f"a `spotlight up` or `spotlight down` of {home.path}"):
        file.write_text("")
        left = {process: _in_words(process) for process in left_of(home)}
        # The process that serves the deployments ends its runs in order, which tell the server.
        end_processes([process for process, words in left.items() if SERVING_MODULE in words])
        end_processes(left_of(home))
        return [*ended, *left.values()]


def state_file(home: Home) -> Path:
    """Return the file that a home's `up` has locked; the next holder replaces the note at once."""
    return home.path / "up.json"


@contextmanager
def sole_supervisor(home: Home, own: ServerNote) -> Iterator[None]:
    """Hold a home's lock, and note its `up`.

    Raises:
        ServerError: another `spotlight up` has this home, or an earlier one left processes.
    """
    file = state_file(home.ensure())
    with locked(file, wait=False) as is_ours:
        _refuse_other_machine(home)
        if not is_ours:
            note = read_note(file)
            holder = f" (process {note.pid}, {note.ui_url})" if note else ", or `spotlight down` ends it"
            raise ServerError(
                f"`spotlight up` is already running for {home.path}{holder}; use it, end it with `spotlight "
                "down`, or set SPOTLIGHT_HOME to another folder"
            )
        own.write(file)
        try:
            if left := left_of(home):
                named = ", ".join(map(_in_words, left[:4]))
                raise ServerError(
                    f"an earlier `spotlight up` left {len(left)} processes ({named}); end them with "
                    "`spotlight down`"
                )
            yield
        finally:
            with suppress(OSError):  # the home may be gone, or another's by now
                if read_note(file) == own:
                    file.write_text("")


def _refuse_other_machine(home: Home) -> None:
    note = read_note(state_file(home))
    if note is not None and note.machine != socket.gethostname():
        raise ServerError(
            f"`spotlight up` of {home.path} runs on {note.machine}; end it there with `spotlight down`, or, "
            f"if that machine is gone, delete {state_file(home)}"
        )


def left_of(home: Home) -> list[psutil.Process]:
    """Return the living children of a home's `up` and their descendants, which carry its path."""
    found, mark = [], str(home.path.resolve())  # however the home's path is spelled
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # gone meanwhile, or another user's
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(UP_VARIABLE) == mark:
                found.append(process)
    return found


def _in_words(process: psutil.Process) -> str:
    try:
        return f"{' '.join(process.cmdline()[1:4])[:60]} (process {process.pid})"
    except psutil.Error:
        return str(process.pid)


def _check(home: Home, own: ServerNote, ui_port: int, schedule: Schedule) -> None:
    check_address(own.host, own.names)
    check_login(home, own.host)
    if own.port == ui_port:
        raise ConfigurationError(f"--server-port and --ui-port are both {ui_port}; give them two ports")
    configured = os.environ.get("PREFECT_API_URL")
    if configured:
        raise ConfigurationError(
            f"PREFECT_API_URL is {configured}, but `up` starts its own server; unset the variable, or "
            "serve the deployments there: see docs/reference/server.md"
        )
    check_schedule(*schedule[1:])
    home_password(home.ensure())
    if not is_loopback(own.host):
        reporter().note(
            f"warning: --host {own.host}: other machines reach the dashboard, which asks for its login, "
            f"and Prefect, which asks for the line in {password_file(home)}; neither encrypts what is sent"
        )


def check_schedule(cron: str, timezone: str) -> None:
    """Refuse a schedule that would fail later, in another process.

    Raises:
        ConfigurationError: the expression is malformed, its day never comes, or the zone is unknown.
    """
    parts = cron.split()
    if len(parts) != len(_CRON_FIELDS):
        raise ConfigurationError(
            f"--cron {quoted(cron)} has {len(parts)} fields, not {len(_CRON_FIELDS)}: "
            f'{", ".join(_CRON_FIELDS)}, as in "0 2 * * *"'
        )
    for part, (field, (least, most, names)) in zip(parts, _CRON_FIELDS.items(), strict=True):
        for one in part.split(","):
            found = re.fullmatch(r"(\*|(\w+)(?:-(\w+))?)(?:/([1-9]\d{0,3}))?", one, re.ASCII)
            ends = [end for end in found.group(2, 3) if end is not None] if found else [""]
            if not all(
                end.lower() in names.split()
                or (len(end) <= 4 and end.isdigit() and least <= int(end) <= most)
                for end in ends
            ):
                raise ConfigurationError(
                    f"--cron {quoted(cron)}: {quoted(part)} is not a valid {field}; write *, a number from "
                    f"{least} to {most}, a range such as {least}-{most}, a step such as */2, or several "
                    "separated by commas"
                )
    day, month, weekday = parts[2:]
    if weekday == "*" and not set(day + month) & set("*-/"):
        names = _CRON_FIELDS["month"][2].split()
        months = [names.index(one) + 1 if one in names else int(one) for one in month.lower().split(",")]
        if min(map(int, day.split(","))) > max(calendar.monthrange(2024, one)[1] for one in months):
            raise ConfigurationError(
                f"--cron {quoted(cron)}: month {quoted(month)} never has a day {quoted(day)}; choose another"
            )
    if timezone not in zoneinfo.available_timezones():
        raise ConfigurationError(
            f"--timezone {quoted(timezone)} is not a time zone that this machine knows; write UTC, or a name "
            "such as Europe/Berlin"
        )


def where_to_look(home: Home, own: ServerNote, dashboard_url: str, schedule: Schedule) -> str:
    """Describe, for the user, where the pages are and when the nightly runs start.

    Args: those of `up`, and the dashboard's address.
    """
    active, cron, timezone = schedule
    when = f"{cron!r} in {timezone}"
    nightly = f"on, {when}" if active else f"off (`spotlight up --schedule` runs them {when})"
    return (
        f"Prefect UI: {own.ui_url}{_PAGES}/deployments (start, watch and cancel runs)\n"
        f"            log in with the line in {password_file(home)}\n"
        f"dashboard:  {dashboard_url} (view runs)\n"
        f"nightly reproducibility runs: {nightly}\n"
        "Ctrl-C ends all three"
    )
