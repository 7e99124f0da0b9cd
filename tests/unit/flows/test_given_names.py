"""The Run Name of the forms `evaluate` and `reproduce` is the identifier of what they do."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import start
from flows.deployed import deployments
from flows.deployed.forms import EvaluationForm, ReproductionForm
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.home import Home
from storage.record.run_store import RunStore


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was done under which identifier; flow runs are named \"mine\" by a person."""
    done: list[Any] = []
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    for name in ("gone_soon_when_cancelled", "shown_in_prefect"):
        monkeypatch.setattr(deployments, name, nullcontext)
    monkeypatch.setattr(deployments, "name_given_in_prefect", lambda: "mine")
    monkeypatch.setattr(deployments, "name_flow_run", done.append)
    for name in ("run_preflight", "show_result", "show_differences"):
        monkeypatch.setattr(deployments, name, lambda *_: None)
    return done


def test_an_evaluation_has_the_given_name(called: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(start, "evaluated_configuration", lambda *_: RunConfig())
    monkeypatch.setattr(
        deployments,
        "_function",
        lambda *_: lambda *_, evaluation_id, preset: called.append((evaluation_id, preset)) or {},
    )
    deployments.evaluate_by_form.fn(EvaluationForm())
    assert called == ["mine", ("mine", "glyphs")]


def test_a_reproduction_has_the_given_name(
    called: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    module = SimpleNamespace(
        do_again=lambda form, run_id, named: (
            called.append(run_id) or SimpleNamespace(summary=dict, differences=[])
        ),
        refuse_drift=lambda done: None,
    )
    monkeypatch.setattr(deployments.importlib, "import_module", lambda name: module)
    deployments.reproduce_by_form.fn(ReproductionForm())
    assert called == ["mine"]
    RunStore(Home(tmp_path)).create_run("mine", RunConfig(), {}, 1)
    with pytest.raises(ConfigurationError, match="exists already"):
        deployments.reproduce_by_form.fn(ReproductionForm())
