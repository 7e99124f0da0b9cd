"""The hosts that a command and all its children turn to, other than this machine.

By strace, which sees a library in C as it sees Python. A UDP socket that is only connected sends nothing: it
does not count.
"""

from __future__ import annotations

import ipaddress
import re
import shutil
import subprocess
from ast import literal_eval
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")

_CALLS = "connect,sendto,sendmsg,sendmmsg,write,writev"
_TO = re.compile(r"sin6?_port=htons\((\d+)\).*?(?:inet_addr\(|inet_pton\(AF_INET6, )\"([^\"]+)\"")
_CONNECTED = re.compile(r"<(TCP|UDP)(?:v6)?:\[(?:[^>]*->(\[[^\]]+\]|[^:\]]+):(\d+))?")
_PAYLOAD = re.compile(r"\"((?:[^\"\\]|\\.)*)\"")
_NAMES = 53


def contacts(
    command: Sequence[str], environment: Mapping[str, str], cwd: Path, trace: Path, limit_s: float
) -> set[str]:
    """Run a command to its end; returns what it turned to: addresses, and names that it looked up."""
    follow = ("-f", "--seccomp-bpf", "-qq", "-yy", "-s", "300", "-e", f"trace={_CALLS}")
    subprocess.run(
        ["strace", *follow, "-o", str(trace), *command], cwd=cwd, env=environment, timeout=limit_s,
        check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    with trace.open(encoding="utf-8", errors="replace") as lines:
        return {host for line in lines if (host := _contact(line))}


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
