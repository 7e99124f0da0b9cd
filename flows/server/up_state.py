"""The processes of a `spotlight up`: a file in the home that outlives a crash, and the processes left by one.

A process counts as one of ours only if three things hold: its pid is in the file, it began when the
file says, and its environment carries the file's token. Its descendants inherit the token, so that they
are found when nothing else of them is known. A pid that the system gave to another process is left alone.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from storage.clock import process_is_alive, process_start_s
from storage.errors import ServerError
from storage.home import UP_TOKEN_VARIABLE, Home

SERVER = "Prefect server"
DEPLOYMENTS = "deployments"
DASHBOARD = "dashboard"
"""Names of the children."""

_PATIENCE_S = 45.0
"""Seconds for running flows to end in order and save what they hold."""


@dataclass(frozen=True)
class Member:
    """A process as it was when recorded.

    Attributes:
        started_at: when the process began, in seconds since the machine did.
    """

    name: str
    pid: int
    started_at: float

    @classmethod
    def of(cls, name: str, pid: int) -> Member:
        """Record a living process."""
        return cls(name, pid, process_start_s(pid))


@dataclass(frozen=True)
class UpState:
    """The content of the file.

    Attributes:
        host: name of the machine.
        token: word in the environment of every child.
        api_url: address of the Prefect server's API.
        supervisor: the `spotlight up` itself, which has no token: a person's shell started it.
        members: its children; the Prefect server has no token, as runs of the home may use it too.
        dashboard_url: address of the dashboard, as this machine sees it.
    """

    host: str
    token: str
    api_url: str
    supervisor: Member
    members: tuple[Member, ...] = ()
    dashboard_url: str = ""


def new_token() -> str:
    """Return a word that no other environment holds."""
    return secrets.token_hex(16)


def state_file(home: Home) -> Path:
    """Return the file of a home's `up`."""
    return home.path / "up.json"


def write_state(home: Home, state: UpState) -> None:
    """Write the state; a reader sees the old file or the new one."""
    file = state_file(home)
    beside = file.with_suffix(".writing")
    beside.write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
    beside.replace(file)


def read_state(home: Home) -> UpState | None:
    """Return the recorded state; None if there is none.

    Raises:
        ServerError: the file is damaged.
    """
    file = state_file(home)
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return UpState(
            **{
                **values,
                "supervisor": Member(**values["supervisor"]),
                "members": tuple(Member(**member) for member in values["members"]),
            }
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServerError(
            f"{file} cannot be read ({error}); look for processes of `spotlight up` yourself, then delete it"
        ) from error


def forget_state(home: Home) -> None:
    """Remove the file once nothing is left of the `up`."""
    state_file(home).unlink(missing_ok=True)


def left_of(state: UpState) -> list[psutil.Process]:
    """Return the living processes of this machine with the token: the children and their descendants."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and (
                process.environ().get(UP_TOKEN_VARIABLE) == state.token
            ):
                found.append(process)
        except (psutil.Error, OSError):  # gone meanwhile, or another user's
            continue
    return found


def end_all(state: UpState) -> list[str]:
    """End what a `spotlight up` of this machine left: itself first, if it lives.

    Returns:
        Names of the ended processes: children by their name, others by their command.
    """
    ended: list[str] = []
    if process_is_alive(state.supervisor.pid, state.supervisor.started_at):
        ended.append("up")
        process = psutil.Process(state.supervisor.pid)
        process.terminate()
        psutil.wait_procs([process], timeout=_PATIENCE_S)
    names = {
        member.pid: member.name for member in state.members if process_is_alive(member.pid, member.started_at)
    }
    left = left_of(state)
    for process in left:
        ended.append(names.get(process.pid) or _command(process))
    # The process that serves the deployments ends its runs in order.
    first = {member.pid for member in state.members if member.name == DEPLOYMENTS}
    _end([process for process in left if process.pid in first])
    _end([process for process in left if process.pid not in first])
    _end(left_of(state), patience_s=1.0)
    return ended


@contextmanager
def sole_supervisor(home: Home) -> Iterator[None]:
    """Hold a home's lock, which the system releases however this process ends.

    Raises:
        ServerError: another `spotlight up` has this home, or an earlier one left processes.
    """
    home.ensure()
    with (home.path / "up.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            state = read_state(home)
            where = f" (process {state.supervisor.pid}, {state.api_url})" if state else ""
            raise ServerError(
                f"`spotlight up` runs already for {home.path}{where}; use it, end it with `spotlight down`, "
                "or set SPOTLIGHT_HOME to another folder"
            ) from error
        _refuse_leftovers(home)
        yield


def _refuse_leftovers(home: Home) -> None:
    state = read_state(home)
    if state is None:
        return
    if state.host != socket.gethostname():
        raise ServerError(
            f"{home.path} belongs to a `spotlight up` on {state.host}; end it there with `spotlight down`, "
            f"or, if that machine is gone, delete {state_file(home)}"
        )
    left = left_of(state)
    if left:
        raise ServerError(
            f"an earlier `spotlight up` left {len(left)} processes ({', '.join(map(_command, left[:4]))}); "
            "end them with `spotlight down`"
        )
    forget_state(home)


def _end(processes: list[psutil.Process], patience_s: float = _PATIENCE_S) -> None:
    """Send SIGTERM, wait, send SIGKILL; psutil checks the start time again, so a reused pid is safe."""
    for process in processes:
        _send(process, psutil.Process.terminate)
    _, alive = psutil.wait_procs(processes, timeout=patience_s)
    for process in alive:
        _send(process, psutil.Process.kill)
    psutil.wait_procs(alive, timeout=10)


def _send(process: psutil.Process, signal_of: Callable[[psutil.Process], None]) -> None:
    try:
        signal_of(process)
    except psutil.NoSuchProcess:
        return


def _command(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline()[:4])[:60]}"
    except psutil.Error:
        return str(process.pid)
