"""What the forms of the deployments say and refuse."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from flows.deployed.forms import (
    EvaluationForm,
    PresetName,
    PretrainingForm,
    ReproductionForm,
    TrainingForm,
    WhatIfForm,
)
from storage.config.loading import list_presets

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
        (PretrainingForm, {"out": "x", "task": "letters"}),
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


@pytest.mark.parametrize("setting", ["iterations=3", 'name="a b"', "adaptation.targets = [1, 2]"])
def test_settings_as_a_person_writes_them_are_taken(setting: str):
    assert TrainingForm(settings=[setting]).settings == [setting]


@pytest.mark.parametrize("task", ["edits", "glyphs", "moving-shapes", "shapes"])
def test_every_embedded_model_can_be_made(task: str):
    assert PretrainingForm.model_validate({"out": "x", "task": task}).task == task


def test_an_untouched_form_is_valid():
    assert TrainingForm().preset == "glyphs"
    assert ReproductionForm().reference == ""
