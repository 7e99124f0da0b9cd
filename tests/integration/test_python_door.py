"""`import spotlight` in a notebook without ipywidgets: a real kernel, whose event loop runs."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from storage.home import Home
from storage.record.run_store import RunStore
from tests.documents import ROOT, python_of
from tests.sample_run import write_sample_run

WITHOUT_WIDGETS = "import sys; sys.modules['ipywidgets'] = None"
AGAIN = """
told = []
second = spotlight.train(
    preset="smoke", settings={"iterations": 1}, name="second", run_id="second",
    on_iteration=lambda number, metrics: told.append((number, metrics["reward_mean"])),
)
run = second.load()
assert told == [(1, run.curves["reward_mean"][0])]
assert run.curves["ended_at"][0] < run.scores["ended_at"][1] < spotlight.runs()["ended_at"][0]
print("second", second.run_id, run.status)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SPOTLIGHT_RUNTIME__CLUSTER", "local")
    monkeypatch.setenv("SPOTLIGHT_RUNTIME__SCORER_WORKERS", "1")
    monkeypatch.setenv("SPOTLIGHT_TRACKING__TO", "[]")  # the run of `test_contacts.py` is copied to MLflow
    return Home(tmp_path / "home")


def ran_in_a_kernel(folder: Path, *cells: str) -> nbformat.NotebookNode:
    """A notebook of the cells, run one after another in a kernel; a cell that raises fails the test."""
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in (WITHOUT_WIDGETS, *cells)]
    )
    NotebookClient(book, timeout=840, kernel_name="python3").execute(cwd=str(folder))
    del book.cells[0]
    return book


def test_a_notebook_shows_a_recorded_run_with_its_chart_and_images(home: Home, tmp_path: Path):
    write_sample_run(RunStore(home.ensure()), "recorded")
    load = "import spotlight\nrun = spotlight.load_run(spotlight.runs()['run_id'][0])\n"
    book = ran_in_a_kernel(tmp_path, f"{load}run", "run.plot()", "print(len(run.curves), len(run.images))")
    [shown], [chart], [counts] = (cell["outputs"] for cell in book.cells)
    assert "recorded</b> finished, held-out score 0." in shown["data"]["text/html"]
    assert "data:image/png;base64," in shown["data"]["text/html"]
    traces = chart["data"]["application/vnd.plotly.v1+json"]["data"]
    assert "held-out prompts" in [trace["name"] for trace in traces]
    assert all(int(count) > 0 for count in counts["text"].split())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_example_s_notebook_and_the_document_s_code_run_and_another_run_follows(
    home: Home, tmp_path: Path
):
    """One after another in one kernel; each has the home start a Prefect server."""
    example = nbformat.read(ROOT / "examples/notebook.ipynb", 4)
    codes = [cell["source"] for cell in example.cells if cell["cell_type"] == "code"]
    [code] = python_of("docs/reference/python.md")
    book = ran_in_a_kernel(tmp_path, *codes, code.replace('"glyphs"', '"smoke"'), AGAIN)
    trained, *shown = book.cells[:-2]
    [bar] = [out["data"]["text/plain"] for out in trained["outputs"] if "2/2" in str(out.get("data"))]
    assert "━" in bar and "reward 0." in bar and "0:00:00 left" in bar
    outputs = [cell["outputs"][-1]["data"] for cell in shown]
    assert [next(iter(kind for kind in data if kind != "text/plain")) for data in outputs] == [
        "text/html", "application/vnd.plotly.v1+json", "text/html"
    ]  # fmt: skip
    of_document, again = (
        "".join(out["text"] if "text" in out else out["data"]["text/plain"] + "\n" for out in cell["outputs"])
        for cell in book.cells[-2:]
    )
    assert "Traceback" not in of_document + again and "Unable to connect" not in of_document + again
    assert again.rstrip().endswith("second second finished")
    rows = RunStore(home).runs()
    assert [(row.status, row.last_iteration) for row in rows] == [
        ("finished", 1), ("finished", 4), ("finished", 2)
    ]  # fmt: skip
    assert (tmp_path / "my-weights" / "README.md").is_file()
    with sqlite3.connect(f"{(home.prefect / 'prefect.db').as_uri()}?mode=ro", uri=True) as books:
        states = books.execute("SELECT name, state_type FROM flow_run ORDER BY created").fetchall()
    assert {state for _, state in states} == {"COMPLETED"}
    runs = [row.run_id for row in reversed(rows)]
    assert [name for name, _ in states if name in runs] == runs
    assert len(states) == 4, "three trainings and an evaluation"
