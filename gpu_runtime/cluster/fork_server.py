"""A process that has the imports of workers done, and forks one worker after another from itself.

It has one thread and holds no device, so that a fork of it is sound. It ends when the driver does, however
that ends, as its socket then closes; the kernel kills its workers with it, stopped ones too. Linux only.

    python -c 'from gpu_runtime.cluster.fork_server import main; main()' FD MODULE...
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Sequence

PID_BYTES = 8
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the driver: its socket and the modules to import are on the command line."""
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])


def _serve(driver: socket.socket, modules: Sequence[str]) -> None:
    """Fork a worker for each message, which brings the worker's socket and a file for what it prints.

    The answer is the worker's number, and a descriptor of its process that no later process can be taken for.
    """
    for module in modules:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then removes workers that have ended
    sys.stdout.flush()  # else each worker prints it again
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # a collection in a worker would copy the pages that it looks at
    own = os.getpid()
    while True:
        message, descriptors, _, _ = socket.recv_fds(driver, 1, 2, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return
        pid = os.fork()
        if not pid:
            driver.close()
            _become_worker(own, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        _answer(driver, pid)


def _answer(driver: socket.socket, pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:  # it has ended already, which its socket tells
        driver.sendall(pid.to_bytes(PID_BYTES, "little"))
        return
    socket.send_fds(driver, [pid.to_bytes(PID_BYTES, "little")], [process])
    os.close(process)


def _become_worker(server: int, link: int, output: int) -> None:
    """Never returns."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:  # it has ended before the kernel was set to signal that
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.close(output)
    from gpu_runtime.cluster.local_worker import serve

    code = 1
    try:
        serve(link)
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # what the fork server has registered for its own end is not the worker's
