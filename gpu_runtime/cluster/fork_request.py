"""The script that Ray starts for a worker; the fork server forks one with this process's environment.

A plain worker would spend ten seconds on imports that the fork server already did. If no fork server answers,
this process becomes the worker. It uses only the standard library, to start within milliseconds.

    python -I -S fork_request.py NAME SCRIPT ARGUMENT...
"""

import json
import os
import socket
import sys

SIZE_BYTES = 8
_LIMIT_S = 30.0


def main() -> None:
    """Ask the fork server; its name, the worker's script and arguments are on the command line."""
    name, arguments = sys.argv[1], sys.argv[2:]
    request = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode()
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(_LIMIT_S)
            server.connect(f"\0{name}")
            socket.send_fds(server, [len(request).to_bytes(SIZE_BYTES, "little")], [0, 1, 2])
            server.sendall(request)
            forked = bool(server.recv(SIZE_BYTES))
    except OSError:
        forked = False
    if not forked:
        os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
