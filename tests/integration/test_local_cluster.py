"""Local processes without Ray: what goes in, comes back, is raised, or is lost; and that none is left."""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from gpu_runtime.cluster import local_cluster
from gpu_runtime.cluster.fork_client import ForkedProcess, requesting_command, start_fork_server
from gpu_runtime.cluster.fork_request import SIZE_BYTES
from gpu_runtime.cluster.local_cluster import LocalActor, LocalCluster
from gpu_runtime.cluster.protocol import RemoteActor
from storage.config.run_config import RunConfig
from storage.errors import RuntimeFailure, WorkerLostError

LIMIT_S = 240.0


class Parrot:
    """Says what it is told."""

    def __init__(self, word: str = "hello") -> None:
        if word == "wrong":
            raise RuntimeFailure(f"no parrot says {word}")
        self.said: list[Any] = [word]

    def say(self, *what: Any, loudly: bool = False) -> Any:
        self.said.append(what)
        return (what, loudly)

    def all_said(self) -> list[Any]:
        return self.said

    def sleep(self, seconds: float = 3600.0) -> None:
        time.sleep(seconds)

    def refuse(self, why: str) -> None:
        raise RuntimeFailure(why)

    def unreadable(self) -> Unreadable:
        return Unreadable()

    def unsendable(self) -> Any:
        return threading.Lock()

    def where(self) -> tuple[int, str, str, int]:
        name = psutil.Process().name()
        return os.getpid(), name, os.environ.get("SAID", ""), len(os.listdir(f"/proc/{os.getppid()}/task"))

    def print(self, text: str) -> None:
        print(text)

    def output_bytes(self) -> int:
        found = os.fstat(1)
        assert found.st_blocks * 512 < 1 << 20
        return found.st_size

    def print_and_end(self, text: str) -> None:
        print(text, file=sys.stderr)
        os._exit(3)

    def write_into(self, array: np.ndarray) -> None:
        array[0] = 1

    def kept(self, array: np.ndarray) -> None:
        self.said = [array]


class Unreadable:
    """Goes into bytes and not back."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    cluster = LocalCluster(RunConfig())
    yield cluster
    cluster.shutdown()


@pytest.fixture
def parrot(cluster: LocalCluster) -> Iterator[RemoteActor[Parrot]]:
    parrot = cluster.start("parrot-0", Parrot, gpu=False)
    yield parrot
    parrot.kill()


def is_there(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def await_end(pid: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while is_there(pid):
        assert time.monotonic() < deadline, f"process {pid} is left"
        time.sleep(0.02)


def test_what_a_worker_prints_is_in_its_file(tmp_path: Path):
    cluster, log = LocalCluster(RunConfig(), tmp_path / "output"), tmp_path / "output" / "parrot-0.log"
    try:
        first = cluster.start("parrot-0", Parrot, gpu=False)
        first.call(Parrot.print, "as the first").result(LIMIT_S)
        assert log.read_text() == "as the first\n"
        first.kill()
        first.wait(LIMIT_S)
        parrot = cluster.start("parrot-0.1", Parrot, gpu=False)  # it takes the slot
        parrot.call(Parrot.print, "as the second").result(LIMIT_S)
        assert log.read_text() == "as the first\nas the second\n"
        parrot.call(Parrot.print, "x" * (1 << 20)).result(LIMIT_S)
        parrot.call(Parrot.print, "the end").result(LIMIT_S)
        assert log.stat().st_size < (1 << 19) + 100
        assert log.read_text().endswith("x\nthe end\n")
    finally:
        cluster.shutdown()


def test_what_a_worker_prints_in_memory_is_bounded(parrot):
    for number in range(3):
        parrot.call(Parrot.print, f"{number}" * (1 << 20)).result(LIMIT_S)
    size = parrot.call(Parrot.output_bytes).result(LIMIT_S)
    assert size == 1 << 19, "the second half, without a hole before it"


def test_calls_are_served_in_the_order_in_which_they_were_made(parrot):
    calls = [parrot.call(Parrot.say, number) for number in range(2000)]
    assert [call.result(LIMIT_S) for call in calls] == [((number,), False) for number in range(2000)]
    assert parrot.call(Parrot.all_said).result(LIMIT_S) == ["hello", *[(number,) for number in range(2000)]]
    assert parrot.call(Parrot.say, 1, loudly=True).result(LIMIT_S) == ((1,), True)


def test_calls_of_several_threads_all_have_their_own_answers(parrot):
    with ThreadPoolExecutor(4) as threads:
        said = threads.map(lambda number: parrot.call(Parrot.say, number).result(LIMIT_S), range(800))
        assert list(said) == [((number,), False) for number in range(800)]


def test_large_values_go_both_ways_while_more_are_on_their_way(parrot):
    large = np.arange(3_000_000, dtype=np.float64)
    for call in [parrot.call(Parrot.say, large + number, number) for number in range(4)]:
        (array, number), _ = call.result(LIMIT_S)
        assert np.array_equal(array, large + number)


def test_an_answer_lives_only_as_long_as_its_reader_keeps_it(parrot):
    answer = parrot.call(Parrot.say, np.zeros(1000)).result(LIMIT_S)
    array = weakref.ref(answer[0][0])
    assert array() is not None
    del answer
    deadline = time.monotonic() + 60  # the receiver lets go a moment after it has set the result
    while array() is not None:
        assert time.monotonic() < deadline, "the receiver keeps its last answer"
        time.sleep(0.01)


def test_errors_arrive_as_they_were_raised_with_the_worker_s_traceback(parrot):
    with pytest.raises(RuntimeFailure, match="no seed today") as raised:
        parrot.call(Parrot.refuse, "no seed today").result(LIMIT_S)
    (note,) = raised.value.__notes__
    assert note.startswith("in worker 'parrot-0':") and "in refuse" in note
    with pytest.raises(ValueError, match="no number"):
        parrot.call(Parrot.unreadable).result(LIMIT_S)
    with pytest.raises(RuntimeFailure, match="what it returned cannot be sent"):
        parrot.call(Parrot.unsendable).result(LIMIT_S)
    with pytest.raises(TypeError):
        parrot.call(Parrot.say, threading.Lock())
    assert parrot.call(Parrot.say, "still").result(LIMIT_S) == (("still",), False)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_kill_in_the_midst_of_a_call_ends_all_open_calls(parrot, stopped: bool):
    pid, *_ = parrot.call(Parrot.where).result(LIMIT_S)
    if stopped:
        os.kill(pid, signal.SIGSTOP)
    # More than a socket holds: a stopped process reads none of it, and the driver must not wait for that.
    open_calls = [parrot.call(Parrot.sleep), *(parrot.call(Parrot.say, bytes(10**6)) for _ in range(5))]
    assert not open_calls[0].done()
    parrot.kill()
    for call in open_calls:
        with pytest.raises(WorkerLostError, match="worker 'parrot-0' is gone: its process ended"):
            call.result(LIMIT_S)
    with pytest.raises(WorkerLostError):
        parrot.call(Parrot.say).result(LIMIT_S)
    parrot.kill()
    await_end(pid)


def test_why_a_worker_is_gone_is_said_to_all_that_call_it(cluster: LocalCluster, parrot):
    with pytest.raises(WorkerLostError, match=r"its process ended; it last printed: out of memory"):
        parrot.call(Parrot.print_and_end, "out of memory").result(LIMIT_S)
    never_built = cluster.start("parrot-1", Parrot, "wrong", gpu=False)
    for _ in range(2):
        with pytest.raises(WorkerLostError, match="'parrot-1' is gone: RuntimeFailure: no parrot says wrong"):
            never_built.call(Parrot.say).result(LIMIT_S)


def test_processes_are_named_and_have_the_environment_of_now_and_a_single_threaded_parent(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SAID", "something")
    parrot = cluster.start("spot-7.1", Parrot, gpu=False)
    pid, name, said, threads = parrot.call(Parrot.where).result(LIMIT_S)
    assert (name, said, threads) == ("spot-7.1", "something", 1)
    assert pid in {child.pid for child in psutil.Process().children(recursive=True)}
    assert isinstance(parrot, LocalActor) and parrot.pid == pid
    parrot.kill()


def test_shared_values_arrive_as_they_are_and_are_read_only(cluster: LocalCluster, parrot):
    value = {
        "a": np.arange(5.0),
        "b": np.zeros((0, 3), np.uint8),
        "c": np.ones((2, 2))[:, :1],
        "d": [b"x", None],
    }
    shared = cluster.share(value)
    ((one, other), _) = parrot.call(Parrot.say, shared, shared).result(LIMIT_S)
    for there in (one, other):
        assert there.keys() == value.keys() and there["d"] == value["d"]
        assert all(np.array_equal(there[name], value[name]) for name in "abc")
    with pytest.raises(ValueError, match="read-only"):
        parrot.call(Parrot.write_into, cluster.share(np.zeros(3))).result(LIMIT_S)


def test_a_shared_value_lives_until_its_calls_have_ended_and_no_longer(cluster: LocalCluster, parrot):
    def shared() -> int:
        found = 0
        for file in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # another thread has closed it meanwhile
                found += "spotlight-shared-value" in os.readlink(file)
        return found

    gc.collect()
    assert shared() == 0
    pid, *_ = parrot.call(Parrot.where).result(LIMIT_S)
    os.kill(pid, signal.SIGSTOP)  # no call ends meanwhile
    calls = [parrot.call(Parrot.say, cluster.share(np.full(1000, float(number)))) for number in range(3)]
    assert shared() == 3
    os.kill(pid, signal.SIGCONT)
    for number, call in enumerate(calls):
        ((array,), _) = call.result(LIMIT_S)
        assert array[0] == number
    parrot.call(Parrot.say).result(LIMIT_S)
    assert shared() == 0
    # What a worker has mapped it keeps.
    parrot.call(Parrot.kept, cluster.share(np.full(1000, 7.0))).result(LIMIT_S)
    (kept,) = parrot.call(Parrot.all_said).result(LIMIT_S)
    assert kept[-1] == 7.0


def test_clusters_share_the_fork_server_and_end_their_own_workers_only(cluster: LocalCluster, parrot):
    other = LocalCluster(RunConfig())
    pid, *_ = other.start("parrot-2", Parrot, gpu=False).call(Parrot.where).result(LIMIT_S)
    here, *_ = parrot.call(Parrot.where).result(LIMIT_S)
    assert psutil.Process(pid).ppid() == psutil.Process(here).ppid()
    other.shutdown()
    assert not is_there(pid)
    assert parrot.call(Parrot.say, 1).result(LIMIT_S) == ((1,), False)


def test_a_worker_that_is_forked_while_its_cluster_shuts_down_ends_too(monkeypatch: pytest.MonkeyPatch):
    late, server = LocalCluster(RunConfig()), start_fork_server()

    def fork(*given: Any) -> ForkedProcess:
        late.shutdown()
        return server.fork(*given)

    monkeypatch.setattr(local_cluster, "start_fork_server", lambda: SimpleNamespace(fork=fork))
    parrot = late.start("parrot-5", Parrot, gpu=False)
    with pytest.raises(WorkerLostError):
        parrot.call(Parrot.say, 1).result(LIMIT_S)
    await_end(parrot.pid)


def test_the_loss_of_the_fork_server_loses_its_workers_and_the_next_ones_have_another(cluster: LocalCluster):
    first = cluster.start("parrot-3", Parrot, gpu=False)
    pid, *_ = first.call(Parrot.where).result(LIMIT_S)
    os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
    with pytest.raises(WorkerLostError):
        first.call(Parrot.sleep).result(LIMIT_S)
    await_end(pid)
    second = cluster.start("parrot-4", Parrot, gpu=False)
    assert second.call(Parrot.say, 1).result(LIMIT_S) == ((1,), False)
    second.kill()


def test_a_requester_that_no_longer_waits_gets_no_worker(cluster: LocalCluster, parrot, tmp_path: Path):
    """It has become the worker itself: another one would be a second worker of the same name."""
    server = psutil.Process(parrot.call(Parrot.where).result(LIMIT_S)[0]).parent()
    assert server is not None
    script = tmp_path / "script.py"
    script.write_text("import time; time.sleep(3600)")
    command = [*shlex.split(requesting_command()), str(script)]
    request = json.dumps([command[-1:], dict(os.environ), os.getcwd()]).encode()
    before = set(server.children())
    server.suspend()
    with socket.socket(socket.AF_UNIX) as gave_up:
        gave_up.connect(f"\0{command[-2]}")
        socket.send_fds(gave_up, [len(request).to_bytes(SIZE_BYTES, "little")], [0, 1, 2])
        gave_up.sendall(request)
    server.resume()
    subprocess.run(command, check=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    forked = set(server.children()) - before
    for process in forked:
        process.kill()
    assert len(forked) == 1


DRIVER = """
import sys, time
from gpu_runtime.cluster import fork_client
from gpu_runtime.cluster.local_cluster import LocalCluster
from storage.config.run_config import RunConfig
from tests.integration.test_local_cluster import Parrot
fork_client.IMPORTED = ("gpu_runtime.cluster.local_worker",)  # a parrot needs no model
cluster = LocalCluster(RunConfig())
actors = [cluster.start(f"parrot-{n}", Parrot, gpu=False) for n in range(3)]
print(*[actor.call(Parrot.where).result()[0] for actor in actors], flush=True)
actors[0].call(Parrot.sleep)
time.sleep(3600 if sys.argv[1] == "wait" else 0)
"""


def test_no_process_outlives_the_driver():
    """One worker is idle, one in a call, one stopped; a driver is killed, another ends by itself."""
    killed, ended = (
        subprocess.Popen([sys.executable, "-c", DRIVER, end], stdout=subprocess.PIPE, text=True)
        for end in ("wait", "leave")
    )
    family = set[int]()
    for driver in (killed, ended):
        assert driver.stdout is not None
        with driver.stdout:
            pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(pids) == 3
        family |= set(pids)
        if driver is killed:
            family |= {psutil.Process(pid).ppid() for pid in pids}
            os.kill(pids[2], signal.SIGSTOP)
            driver.kill()
    assert (killed.wait(LIMIT_S), ended.wait(LIMIT_S)) == (-signal.SIGKILL, 0)
    for pid in family:
        await_end(pid)
