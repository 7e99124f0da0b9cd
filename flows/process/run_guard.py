"""A small process beside a run that reports how the run's process ended, if that could not report it itself.

SIGKILL, the system's out-of-memory killer, and Ray's core, which ends the driver when its own processes are
gone, leave no time for a message. This process holds the other end of a pipe: when the pipe closes without
the byte that an orderly end sends, it marks the run as interrupted and prints one line on how to continue. It
follows Ray's processes, so that it can report which ended first; in a joined cluster it checks whether the
head still answers.

    python -m flows.process.run_guard HOME RUN_ID PID [HOST:PORT]
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from storage.processes import python_command

_ANSWER_S = 5.0
"""Seconds for the head of a joined cluster to accept a connection."""

_ORDERLY = b"."
_WAIT_S = 30.0
"""Seconds that the run's process may take to disappear once its pipe is closed."""


class RunGuard:
    """The run's side: starts the process; must be closed once the run has reported how it ended.

    Args:
        address: head of the cluster that the run joins; empty if it joins none.
    """

    def __init__(self, home: Path, run_id: str, address: str = "") -> None:
        self._run_id, self._address = run_id, address
        about = (str(home), run_id, str(os.getpid()), address)
        self._process = subprocess.Popen(
            python_command("-m", "flows.process.run_guard", *about),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, bufsize=0,
        )  # fmt: skip
        assert self._process.stdin is not None
        self._pipe = self._process.stdin

    @contextmanager
    def following(self, needed: Mapping[str, int]) -> Iterator[None]:
        """Follow the processes (pid by name) that the run needs; name those that ended in an error.

        Ray's core may silently end this process before that error; then the guard's process reports why.

        Raises:
            ClusterLostError: the runtime failed, and one of these processes has ended, or the head of the
                joined cluster does not answer.
            RuntimeFailure: it failed for another reason.
        """
        import psutil  # not in the guard's process, which must stay small

        from storage.clock import process_is_alive, process_start_s
        from storage.errors import ClusterLostError, RuntimeFailure

        self._write("".join(f"{name}={pid}\n" for name, pid in needed.items()).encode())
        begun: dict[str, float | None] = dict.fromkeys(needed)
        for name, pid in needed.items():
            with suppress(psutil.NoSuchProcess):
                begun[name] = process_start_s(pid)
        try:
            yield
        except RuntimeFailure as error:
            go_on = f"continue with `spotlight resume {self._run_id}`"
            ended = [name for name, at_s in begun.items() if not process_is_alive(needed[name], at_s)]
            if ended:
                raise ClusterLostError(f"{error}: {' and '.join(ended)} ended; {go_on}") from error
            if (lost := lost_head(self._address, self._run_id)) is not None:
                raise ClusterLostError(f"{error}: {lost}") from error
            raise RuntimeFailure(f"{error}; {go_on}") from error

    def close(self) -> None:
        """Let the process end: the run has reported how it ended, or is about to."""
        self._write(_ORDERLY)
        self._pipe.close()
        self._process.wait()

    def _write(self, content: bytes) -> None:
        with suppress(BrokenPipeError):  # it was killed: the next command then finds out
            self._pipe.write(content)


def watch(pid: int) -> list[str] | None:
    """Wait for the end of the run's process.

    Returns:
        The processes it needed that ended before it, in order; None if the run reported how it ended.
    """
    followed: dict[int, str] = {}
    """Descriptors that become readable when a process ends (on Linux)."""
    ended: list[str] = []
    pipe = sys.stdin.fileno()
    while True:
        readable, _, _ = select.select([pipe, *followed], [], [])
        if pipe not in readable:
            ended += [followed.pop(descriptor) for descriptor in readable]
            continue
        content = os.read(pipe, 65_536)
        if content.endswith(_ORDERLY):
            return None
        if not content:  # a process that ends right now may do so because the run's process did
            with suppress(OSError, AttributeError):
                select.select([os.pidfd_open(pid)], [], [], _WAIT_S)
            return ended
        for line in content.decode().splitlines():
            name, _, its_pid = line.rpartition("=")
            try:
                followed[os.pidfd_open(int(its_pid))] = name
            except ProcessLookupError:
                ended.append(name)
            except (OSError, AttributeError):  # not Linux
                pass


def lost_head(address: str, run_id: str) -> str | None:
    """Return a message about a head that does not answer; None if it answers or none was joined.

    Args:
        address: HOST:PORT of the head; one of another form (empty, `auto`) is not asked.
        run_id: the run that has joined it.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except OSError:
        return (
            f"the head of the Ray cluster at {address} no longer answers; restart it and continue "
            f"with `spotlight resume {run_id}`, or continue elsewhere with `spotlight resume {run_id} "
            "--ray-address HOST:PORT`; on a machine without this home, set SPOTLIGHT_CHECKPOINT__MIRROR to "
            "the run's checkpoint.mirror and add --take-over"
        )
    return None


def main() -> None:
    """Watch a run, and report its end if it could not."""
    folder, run_id, pid, address = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), "".join(sys.argv[4:])
    ended = watch(pid)
    if ended is None:
        return
    # Imported only now: while waiting, this process needs no more memory than an empty interpreter.
    from storage.errors import SpotlightError
    from storage.home import Home
    from storage.record.run_store import RunStore

    lost = None if ended else lost_head(address, run_id)
    reason = f"{' and then '.join(ended)} ended before it" if ended else "perhaps killed, or out of memory"
    why = f" ({reason}); continue with `spotlight resume {run_id}`" if lost is None else f": {lost}"
    store = RunStore(Home(folder))
    try:
        store.reconcile(lost or reason)
        row = store.run(run_id)
        # Otherwise it did say how it ended, or it has been resumed.
        is_silent = row.status == "interrupted" and row.pid == pid
        done = f" after iteration {row.last_iteration or 0}"
    except SpotlightError as error:
        is_silent, done = True, f" ({error})"
    if is_silent:
        print(
            f"error: run {run_id} was interrupted{done}: process {pid} ended without a message{why}",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    if "PREFECT_API_URL" in os.environ:  # if its server ended with the run, the next one closes its flow run
        os.environ["PREFECT_CLIENT_MAX_RETRIES"] = "0"  # the run's process has some, which wait for a server
        from flows.process.ended_flow_runs import close_flow_runs_of_ended_processes

        close_flow_runs_of_ended_processes(store.home)


if __name__ == "__main__":
    main()
