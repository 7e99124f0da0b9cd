"""The flow `evaluate`: what it tells the person who waits."""

from __future__ import annotations

from pathlib import Path

import pytest

import flows.evaluate
from flows.progress import Reporter
from storage.config import RunConfig


def test_it_names_what_is_evaluated_and_makes_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Listener(Reporter):
        def note(self, message: str) -> None:
            notes.append(message)

    notes: list[str] = []
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(flows.evaluate, "reporter", lambda: Listener())
    monkeypatch.setattr(flows.evaluate, "evaluate_weights", lambda home, config, run_id: {"run_id": run_id})
    flows.evaluate.evaluate_model.fn(RunConfig(), "mine-1")
    flows.evaluate.evaluate_model.fn(RunConfig())
    assert notes == ["evaluating mine-1", "evaluating embedded:glyphs"]
