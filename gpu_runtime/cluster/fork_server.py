"""A process that has done the workers' imports and forks workers from itself.

It has one thread and holds no device, so forking it is safe. It ends when the driver ends in any way, because
its socket then closes; the kernel kills its workers with it, even stopped ones. Linux only.

The driver asks for workers of a local cluster through its socket. `fork_request.py` asks for workers of Ray
through a listening socket made by the driver: it has an abstract name, which leaves no file behind, and is
answered only for processes of the same user.

    python -c 'from gpu_runtime.cluster.fork_server import main; main()' FD LISTENING_FD MODULE...
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpu_runtime.cluster.fork_request import SIZE_BYTES
from storage.processes import without_collections

PID_BYTES = 8
_REQUEST_LIMIT_S = 10.0
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Fork a worker for each message of the driver, and for each request, until the driver ends.

    The driver's socket, the listening one and the modules to import are on the command line.
    """
    driver, requests = (socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:3])
    import_before_forks(sys.argv[3:])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then removes workers that have ended
    sys.stdout.flush()  # otherwise each worker prints it again
    sys.stderr.flush()
    # A collection in a worker would copy the pages that it looks at. None before this: all workers would wait
    # for it, and the little that it frees is spread over the pages.
    gc.freeze()
    while True:
        ready, _, _ = select.select([driver, requests], [], [])
        if requests in ready:
            _serve_request(driver, requests)
        if driver in ready and not _serve_driver(driver, requests):
            return


def import_before_forks(modules: Sequence[str]) -> None:
    """Import what forks of this process will use, without querying GPUs.

    CUDA cannot be used in a fork of a process that queried its devices, and importing diffusers does so for a
    default that is unused here. During the import, CUDA therefore reports no GPU.
    """
    # By its name, like all imports here: drivers import this file but do not use torch.
    cuda: Any = importlib.import_module("torch.cuda")
    is_available = cuda.is_available
    cuda.is_available = lambda: False
    try:
        with without_collections():
            for module in modules:
                importlib.import_module(module)
    finally:
        cuda.is_available = is_available


def _serve_driver(driver: socket.socket, requests: socket.socket) -> bool:
    """Fork a worker for a message, which carries the worker's socket and a file for its output.

    The answer is the worker's number and a descriptor of its process, which no later process can reuse.

    Returns:
        False if the driver is gone.
    """
    message, descriptors, _, _ = socket.recv_fds(driver, 1, 2, socket.MSG_CMSG_CLOEXEC)
    if not message:
        return False
    pid = _fork((driver, requests), partial(_become_worker, *descriptors))
    for descriptor in descriptors:
        os.close(descriptor)
    number = pid.to_bytes(PID_BYTES, "little")
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:  # it has already ended, which its socket shows
        driver.sendall(number)
    else:
        socket.send_fds(driver, [number], [process])
        os.close(process)
    return True


def _serve_request(driver: socket.socket, requests: socket.socket) -> None:
    """Fork a worker of Ray; on failure the requester gets no answer, and becomes the worker itself."""
    asking, _ = requests.accept()
    descriptors: list[int] = []
    with asking:
        try:
            asking.settimeout(_REQUEST_LIMIT_S)
            credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", credentials)[1] != os.getuid():
                return
            size, descriptors, _, _ = socket.recv_fds(asking, SIZE_BYTES, 3, socket.MSG_CMSG_CLOEXEC)
            request = bytearray()
            while len(request) < int.from_bytes(size, "little"):
                part = asking.recv(1 << 16)
                if not part:
                    return
                request += part
            if select.select([asking], [], [], 0)[0]:  # it waited too long and became the worker itself
                return
            worker = partial(_become_script, descriptors, *json.loads(request))
            pid = _fork((driver, requests, asking), worker)
            asking.sendall(pid.to_bytes(SIZE_BYTES, "little"))
        except (OSError, ValueError):
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _fork(sockets: Sequence[socket.socket], worker: Callable[[], None]) -> int:
    """Fork a process that becomes a worker, without these sockets, and return its number."""
    own = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    for one in sockets:
        one.close()
    # The kernel ends this process when the fork server ends.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != own:  # it ended before the kernel was set to signal that
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        worker()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as Python does at the end of a process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # without the exit handlers of the fork server


def _become_worker(link: int, output: int) -> None:
    """Become a worker of a local cluster."""
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.close(output)
    from gpu_runtime.cluster.local_worker import serve

    serve(link)


def _become_script(
    descriptors: Sequence[int], arguments: list[str], environment: dict[str, str], folder: str
) -> None:
    """Become a process that runs a script."""
    os.setsid()  # Ray kills the process group of a lost worker
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    random.seed()  # otherwise all workers would draw the same numbers
    sys.argv[:] = arguments
    runpy.run_path(arguments[0], run_name="__main__")
