"""The hosts that a command and all its children turn to, other than this machine.

By strace where it is there: a library in C is seen as Python is. Elsewhere by a hook in every Python process,
which sees what Python's own sockets are told. A UDP socket that is only connected sends nothing: it does not
count.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import socket
import subprocess
from ast import literal_eval
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest

Means = Literal["strace", "hook"]

MEANS: Means = "strace" if shutil.which("strace") else "hook"
"""The better of those that this machine has."""

needs_strace = pytest.mark.skipif(MEANS != "strace", reason="needs strace")

_CALLS = "connect,sendto,sendmsg,sendmmsg,write,writev"
_TO = re.compile(r"sin6?_port=htons\((\d+)\).*?(?:inet_addr\(|inet_pton\(AF_INET6, )\"([^\"]+)\"")
_CONNECTED = re.compile(r"<(TCP|UDP)(?:v6)?:\[(?:[^>]*->(\[[^\]]+\]|[^:\]]+):(\d+))?")
_PAYLOAD = re.compile(r"\"((?:[^\"\\]|\\.)*)\"")
_NAMES = 53

_HOOK = Path(__file__).with_name("contact_hook.py")


def contacts(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    trace: Path,
    limit_s: float,
    means: Means = MEANS,
) -> set[str]:
    """Run a command to its end; returns what it turned to: addresses, and names that it looked up.

    Args:
        command: what to run.
        environment: all of it.
        cwd: the current folder.
        trace: a file to write.
        limit_s: how long it may take.
        means: what the contacts are seen by.
    """
    own = dict(environment)
    if means == "strace":
        follow = ("-f", "--seccomp-bpf", "-qq", "-yy", "-s", "300", "-e", f"trace={_CALLS}")
        command = ["strace", *follow, "-o", str(trace), *command]
    else:
        site = trace.with_name(f"{trace.name}-site")
        site.mkdir()
        shutil.copy(_HOOK, site / "sitecustomize.py")
        trace.touch()
        path = filter(None, (str(site), own.get("PYTHONPATH")))
        own |= {"CONTACTS": str(trace), "PYTHONPATH": os.pathsep.join(path)}
    subprocess.run(
        command, cwd=cwd, env=own, timeout=limit_s, check=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    contact = _contact if means == "strace" else _noted
    with trace.open(encoding="utf-8", errors="replace") as lines:
        return {host for line in lines if (host := contact(line))}


def _noted(line: str) -> str:
    """The host of a line that the hook has written; empty for this machine."""
    host, _, port = line.rstrip("\n").rpartition(" ")
    try:
        return _elsewhere(host, port)
    except ValueError:  # a name
        return "" if host in ("", "localhost", socket.gethostname()) else host


def _elsewhere(address: str, port: str) -> str:
    """An address of another machine, with its port; empty for this machine."""
    known = ipaddress.ip_address(address.strip("[]").removeprefix("::ffff:"))
    return "" if known.is_loopback or known.is_unspecified else f"{known}:{port}"


def _contact(line: str) -> str:
    """The host that a call in strace's output turns to; empty for this machine, or where nothing is sent."""
    call = re.match(r"\d+ +(\w+)\(", line)
    of_socket = _CONNECTED.search(line)
    if call is None or of_socket is None:
        return ""
    protocol, host, port = of_socket.groups()
    if call[1] == "connect" and protocol == "UDP":
        return ""
    if named := _TO.search(line):
        port, host = named.groups()
    if host is None:
        return ""
    if int(port) == _NAMES:
        return _looked_up(line)
    return _elsewhere(host, port)


def _looked_up(line: str) -> str:
    """The name that a question to a name server holds."""
    payload = _PAYLOAD.search(line)
    content = literal_eval(f'b"{payload[1]}"') if payload else b""
    labels, at = [], 12  # after the header
    while at < len(content) and content[at]:
        labels.append(content[at + 1 : at + 1 + content[at]].decode(errors="replace"))
        at += 1 + content[at]
    return ".".join(labels) or "a name server"
