"""Which deployments are served, by `up` and by `prefect.yaml`, and when they run by themselves."""

from __future__ import annotations

import importlib
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from prefect.client.schemas.schedules import CronSchedule
from pydantic import BaseModel, ValidationError

from flows.deployed.deployments import FLOWS, post_train_by_form, what_if_by_form
from flows.deployed.forms import (
    NIGHTLY_CRON,
    NIGHTLY_ZONE,
    EvaluationForm,
    PresetName,
    PretrainingForm,
    ReproductionForm,
    TrainingForm,
    WhatIfForm,
)
from flows.deployed.serving import deployments
from flows.evaluate import evaluate_model
from flows.post_train import post_train
from flows.pretrain import pretrain
from flows.process.ended_flow_runs import note_process
from flows.reproduce import reproduce
from storage.config.loading import list_presets
from storage.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[3]
NAMES = ["post-train", "evaluate", "reproduce", "pretrain", "what-if", "nightly-ocr", "nightly-geneval"]


@pytest.fixture(scope="module")
def declared() -> list[dict[str, Any]]:
    return yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]


def test_up_and_the_file_serve_the_same_flows(declared: list[dict[str, Any]]):
    served = deployments()
    assert [deployment.name for deployment in served] == NAMES
    assert [deployment["name"] for deployment in declared] == NAMES
    for deployment, here in zip(declared, served, strict=True):
        path, _, function = deployment["entrypoint"].partition(":")
        assert (ROOT / path).is_file()
        module = path.removesuffix(".py").replace("/", ".")
        assert getattr(importlib.import_module(module), function).name == here.flow_name
        assert here.entrypoint == f"{module}.{function}"
        assert here.enforce_parameter_schema


def test_every_flow_names_its_process():
    """The hook lets Prefect's UI cancel a run, and lets us close one whose process was killed."""
    for one in (*FLOWS, post_train, evaluate_model, pretrain, reproduce):
        assert one.on_running_hooks == [note_process], one.fn


@pytest.mark.parametrize("active", [False, True])
def test_the_schedules_are_on_only_where_asked_for(active: bool):
    scheduled = [one for one in deployments(active, "5 3 * * *", "Europe/Berlin") if one.schedules]
    assert [one.name for one in scheduled] == ["nightly-ocr", "nightly-geneval"]
    for deployment in scheduled:
        # Of several in one deployment, Prefect's UI would show the same time and nothing else.
        (schedule,) = deployment.schedules or []
        assert schedule.active is active
        cron = schedule.schedule
        assert isinstance(cron, CronSchedule)
        assert cron.cron == "5 3 * * *"
        assert cron.timezone == "Europe/Berlin"
        ReproductionForm.model_validate((deployment.parameters or {})["form"])


def test_the_files_schedules_are_those_of_up_and_off(declared: list[dict[str, Any]]):
    here = [one for one in deployments() if one.schedules]
    file = [one for one in declared if "schedules" in one]
    assert [(one["name"], one["parameters"]["form"]["preset"]) for one in file] == [
        (one.name, (one.parameters or {})["form"]["preset"]) for one in here
    ]
    assert [schedule for one in file for schedule in one["schedules"]] == [
        {"cron": NIGHTLY_CRON, "timezone": NIGHTLY_ZONE, "slug": "nightly", "active": False}
    ] * len(here)


def test_a_run_to_resume_has_no_other_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    monkeypatch.setattr("flows.deployed.deployments.shown_in_prefect", nullcontext)
    with pytest.raises(ConfigurationError, match="keeps its own configuration"):
        post_train_by_form.fn(TrainingForm(resume="a", iterations=3))


def test_every_deployment_says_what_it_does():
    for flow in FLOWS:
        assert flow.description
        assert set(flow.parameters.properties) == {"form"}


def test_the_what_if_form_gives_a_table_of_policies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    shown: list[str] = []
    rows: list[dict[str, str]] = []
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    monkeypatch.setattr("flows.deployed.deployments.shown_in_prefect", nullcontext)
    # It would start a Prefect server of its own.
    monkeypatch.setattr("flows.artifacts.create_table_artifact", lambda table, **_: rows.extend(table))
    monkeypatch.setattr("flows.artifacts.create_markdown_artifact", lambda text, **_: shown.append(text))
    prices = tmp_path / "prices.csv"
    prices.write_text("time,market,usd_per_hour,zone\n0,spot,9,a\n0,spot,1.5,b\n")
    form = WhatIfForm(
        preset="smoke", reserved=1, spot=2, trainers=1, iterations=3, windows=2,
        settings=["price.reserved_usd_per_hour=4.5"], prices=str(prices), zone="b", serving="0.4,0.2,3",
    )  # fmt: skip
    result = what_if_by_form.fn(form)
    assert (result["iterations"], result["spot"], result["spot_usd_per_hour"]) == (3, 2, 1.5)
    assert result["reserved_usd_per_hour"] == 4.5
    assert "lending" in [policy["policy"] for policy in result["policies"]]
    assert [row["policy"] for row in rows] == [policy["policy"] for policy in result["policies"]]
    assert {"iteration_s", "iteration_usd", "redone_share", "live"} <= set(rows[0])
    assert re.fullmatch(r"\S+ \[\S+, \S+\]", rows[0]["usd"])
    for row in rows:  # cells are words or figures, and no Python values
        assert not [cell for cell in row.values() if cell[:1] in "[{" or "e+" in cell], row
    (text,) = shown
    above, tables, below = text.split("```")
    assert above.strip() == result["answer"]
    assert "Modelled: 3 iterations, 1 reserved and 2 spot devices" in tables
    assert all(f"\n {policy['policy']} " in tables for policy in result["policies"])
    assert max(map(len, tables.splitlines())) <= 110
    assert all(f"- {line}" in below for line in [*result["conclusions"], *result["basis"]])
    with pytest.raises(ConfigurationError, match=r"runtime\.trainer_workers is 4, above"):
        what_if_by_form.fn(form.model_copy(update={"trainers": 4}))


FORMS = (TrainingForm, EvaluationForm, PretrainingForm, ReproductionForm, WhatIfForm)


def test_the_drop_down_holds_every_preset():
    assert sorted(get_args(PresetName)) == [preset.name for preset in list_presets()]


@pytest.mark.parametrize("form", FORMS)
def test_every_field_explains_itself_and_has_one_type(form: type[BaseModel]):
    schema = form.model_json_schema()
    assert schema["description"]
    assert schema["additionalProperties"] is False
    for name, field in schema["properties"].items():
        assert len(field.get("description", "")) > 10, name
        assert "`" not in field["description"], f"Prefect's UI would show the marks in {name}"
        assert "anyOf" not in field, f"a refusal of {name} would not say why"


@pytest.mark.parametrize(
    ("form", "values"),
    [
        (TrainingForm, {"preset": "nonsense"}),
        (TrainingForm, {"iterations": -1}),
        (TrainingForm, {"iterations": 2**31}),
        (TrainingForm, {"settings": ["iterations"]}),
        (TrainingForm, {"settings": ["=1"]}),
        (TrainingForm, {"resume": "a/b"}),
        (TrainingForm, {"iteratoins": 3}),
        (EvaluationForm, {"run_id": "a b"}),
        (PretrainingForm, {"out": ""}),
        (PretrainingForm, {"out": "x", "model": "letters"}),
        (PretrainingForm, {"out": "x", "seed": 2**32}),
        (ReproductionForm, {"how": "guess"}),
        (ReproductionForm, {"tolerance": 1.5}),
        (ReproductionForm, {"tolerance": -0.1}),
        (WhatIfForm, {"reserved": 0}),
        (WhatIfForm, {"joint": 1.5}),
        (WhatIfForm, {"loss_rate": -1}),
    ],
)
def test_bad_values_are_refused(form: type[BaseModel], values: dict[str, Any]):
    with pytest.raises(ValidationError):
        form.model_validate(values)


def test_what_a_person_writes_is_taken_and_an_untouched_form_is_valid():
    settings = ["iterations=3", 'name="a b"', "adaptation.targets = [1, 2]"]
    assert TrainingForm(settings=settings).settings == settings
    for model in ("edits", "glyphs", "glyphs-guided", "moving-shapes", "shapes"):
        assert PretrainingForm.model_validate({"out": "x", "model": model}).model == model
    assert (TrainingForm().preset, ReproductionForm().reference) == ("glyphs", "")
