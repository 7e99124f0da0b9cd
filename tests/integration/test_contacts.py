"""A whole run turns to no other machine: no library reports its use, none looks for a newer version.

What a command turns to is seen by strace, which sees a library in C as it sees Python. A UDP socket that is
only connected sends nothing: it does not count.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
from ast import literal_eval
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from storage.processes import NO_REPORTS, python_command
from tests.documents import demo_s_end, form
from tests.running_up import ROOT

pytestmark = [
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"), pytest.mark.timeout(1200),
]  # fmt: skip

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
    if int(port) != _NAMES:
        known = ipaddress.ip_address(host.strip("[]").removeprefix("::ffff:"))
        return "" if known.is_loopback or known.is_unspecified else f"{known}:{port}"
    payload = _PAYLOAD.search(line)  # a question to a name server holds the name
    content = literal_eval(f'b"{payload[1]}"') if payload else b""
    labels, at = [], 12  # after the header
    while at < len(content) and content[at]:
        labels.append(content[at + 1 : at + 1 + content[at]].decode(errors="replace"))
        at += 1 + content[at]
    return ".".join(labels) or "a name server"


TURNS_ELSEWHERE = """
import socket
from contextlib import suppress
for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
    outside = socket.socket(socket.AF_INET, kind)
    outside.setblocking(False)
    outside.connect_ex(("192.0.2.1", 9))
    if kind == socket.SOCK_DGRAM:
        outside.connect(("192.0.2.2", 9))  # without a word
# The same question twice: as a library in C sends it, and as Python asks for it.
question = bytes.fromhex("000001000001000000000000") + b"\\x06mobile\\x07example\\x00\\x00\\x01\\x00\\x01"
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(question, ("127.0.0.1", 53))
for name in ("mobile.example", "localhost", socket.gethostname()):
    with suppress(OSError):
        socket.getaddrinfo(name, 443, flags=socket.AI_NUMERICHOST)
"""


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a person's shell, without the variables that this process has set."""
    kept = {name: value for name, value in os.environ.items() if name not in NO_REPORTS}
    return {name: value for name, value in kept.items() if not name.startswith("PREFECT_")} | {
        "SPOTLIGHT_HOME": str(home), "HOME": str(home.parent),
    }  # fmt: skip


def test_what_a_child_turns_to_elsewhere_is_seen(tmp_path: Path):
    child = f"import subprocess; subprocess.run({python_command('-c', TURNS_ELSEWHERE)!r}, check=True)"
    found = contacts([sys.executable, "-c", child], os.environ, tmp_path, tmp_path / "trace", 60)
    assert found == {"192.0.2.1:9", "mobile.example"}


SMALL = {
    "SPOTLIGHT_ALGORITHM__PROMPTS_PER_ITERATION": "4", "SPOTLIGHT_EXPLORATION__PROMPTS": "6",
    "SPOTLIGHT_EXPLORATION__CANDIDATES": "6", "SPOTLIGHT_EXPLORATION__MONITOR_PROMPTS": "2",
    "SPOTLIGHT_EVALUATION__PROMPTS": "8", "SPOTLIGHT_PROMPTS__EVALUATE": "builtin:smoke-evaluate",
    "SPOTLIGHT_RUNTIME__SCORER_WORKERS": "1",
}  # fmt: skip
"""Makes the demo's images a tenth as many."""

DEMO = re.search(r"^demo:.*\n\t\$\(BIN\)/spotlight (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
"""What `make demo` types."""

THEN = """
import spotlight
from storage.home import Home
from tests.dashboard_page import UI, opened_page
from tests.running_up import running_up
for page in sorted(UI.glob("pages/*/page.py")):
    opened_page(page.parent.name, run="demo")
with running_up(Home.from_environment()) as up:
    assert up.client.get(up.dashboard).is_success
    spotlight.train("smoke", iterations=1, cluster="local")
"""
"""A look at all pages of the dashboard, and at its server; a run by the library on local processes."""


@pytest.mark.slow
def test_a_demo_its_report_its_pages_and_a_run_by_the_library_turn_to_this_machine_alone(tmp_path: Path):
    """Two small iterations of it on Ray, one explored; its evaluations, MLflow, the report and the dashboard.

    Its last lines are those that the README shows, but for the bar of a terminal.
    """
    assert DEMO is not None
    words = DEMO[1].replace("--iterations 20", "--iterations 2")
    assert words != DEMO[1]
    spotlight = f"{sys.executable} -m flows.cli.command_line"
    said = tmp_path / "said"
    report = f"{spotlight} report demo --out {tmp_path}/report.html"
    script = f"{spotlight} {words} --run-id demo | tee {said} && {report} && "
    found = contacts(
        ["bash", "-eo", "pipefail", "-c", f'{script} {sys.executable} -c "$0"', THEN],
        environment(tmp_path / "home") | SMALL, ROOT, tmp_path / "trace", 1000,
    )  # fmt: skip
    assert found == set()
    made = {path.name for path in tmp_path.iterdir()} - {"home", "trace", "said", "report.html"}
    assert made <= {".ray"}, "an identifier of the machine, in its owner's folder"
    *lines, result = [line for line in said.read_text().splitlines() if "too short to judge" not in line][-7:]
    assert [form(line) for line in lines] == [form(line) for line in demo_s_end()[1:-1]]
    shown = re.findall(r'"(\w+)":', demo_s_end()[-1])
    assert list(json.loads(result))[: len(shown)] == shown
