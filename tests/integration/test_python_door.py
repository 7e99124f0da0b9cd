"""`import spotlight` in a process of its own: one run after another, each under the home's Prefect server."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from storage.database.run_store import RunStore
from storage.home import Home
from tests.document_code import python_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

AGAIN = """
if True:  # a second run in the same process, whose Prefect is imported by now
    import asyncio

    async def in_a_notebook():
        return spotlight.train(preset="smoke", settings={"iterations": 1}, name="second", run_id="second")

    second = asyncio.run(in_a_notebook())
    print("second", second.run_id, second.load().status)
"""


def test_the_document_s_code_trains_evaluates_exports_and_a_second_run_follows(tmp_path: Path):
    [code] = python_of("docs/python.md")
    home = Home(tmp_path / "home")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"SPOTLIGHT_HOME": str(home.path), "SPOTLIGHT_RUNTIME__CLUSTER": "local"}
    answer = subprocess.run(
        [sys.executable, "-c", code.replace('"glyphs"', '"smoke"') + AGAIN],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=840,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr and "Unable to connect" not in answer.stderr
    assert answer.stdout.rstrip().endswith("second second finished")
    rows = RunStore(home).runs()
    assert [(row.status, row.last_iteration) for row in rows] == [("finished", 1), ("finished", 4)]
    assert (tmp_path / "my-weights" / "README.md").is_file()
    with sqlite3.connect(f"{(home.prefect / 'prefect.db').as_uri()}?mode=ro", uri=True) as books:
        states = books.execute("SELECT name, state_type FROM flow_run ORDER BY created").fetchall()
    assert {state for _, state in states} == {"COMPLETED"}
    assert [name for name, _ in states if name in (rows[0].run_id, rows[1].run_id)] == [
        rows[1].run_id,
        rows[0].run_id,
    ]
    assert len(states) == 3, "two trainings and an evaluation"
