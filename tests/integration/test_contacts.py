"""A whole run turns to no other machine: no library reports its use, none looks for a newer version."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from storage.processes import NO_REPORTS, python_command
from tests.contacts import contacts, needs_strace
from tests.documents import demo_s_end, form
from tests.running_up import ROOT

pytestmark = [needs_strace, pytest.mark.timeout(1200)]

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
    opened_page(page, {"run": "demo"})
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
