"""The end of a finished run: its report is written for the readers, and trouble with it is an event."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tasks.iteration.session
from storage.config.run_config import RunConfig
from storage.errors import ServerError
from storage.home import Home
from storage.readers.following import REPORT
from storage.record.run_store import RunStore
from tasks.iteration.session import Session


class Ends:
    """Readers that note how the run ended, and whether its report was there."""

    def __init__(self, report: Path) -> None:
        self.report = report
        self.ends: list[tuple[str, bool]] = []

    def finish(self, status: str) -> None:
        self.ends.append((status, self.report.exists()))


@pytest.mark.parametrize(
    ("to", "failure", "ends"),
    [(["mlflow"], "", [("finished", True)]), (["mlflow"], "no room", [("finished", False)]), ([], "", [])],
)
def test_readers_get_the_report_if_it_can_be_made(
    to: list[str], failure: str, ends: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def make(home: Home, run_id: str, out: Path) -> None:
        if failure:
            raise ServerError(failure)
        out.write_text("<p>all of it</p>")

    monkeypatch.setattr(tasks.iteration.session, "report_file", make)
    nothing: Any = None
    config = RunConfig.model_validate({"tracking": {"to": to}})
    store = RunStore(Home(tmp_path).ensure())
    store.create_run("r", config, {}, 0)
    readers: Any = Ends(store.home.run("r") / REPORT)
    session = Session("r", config, nothing, store, nothing, readers, ExitStack())
    assert (session.first_iteration, session.last_iteration) == (1, config.iterations)
    session.finish_readers()
    assert readers.ends == ends
    told = [(event["kind"], event["message"]) for event in store.folder("r").events()]
    assert told == ([("report", failure)] if failure else [])
