"""The settings as a table: on the terminal, as JSON, as a page of the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from storage.config.run_config import RunConfig
from storage.config.settings_table import list_settings, settings_page

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"
MOST_SETTINGS = 91


def leaves(values: dict[str, Any], model: type[BaseModel], path: str = "") -> list[str]:
    """Names of all settings, counted from a configuration's own values. A table is one setting: what a
    plug-in's options are, the plug-in declares."""
    names: list[str] = []
    for name, value in values.items():
        kind = model.model_fields[name].annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names += leaves(value, kind, f"{path}{name}.")
        else:
            names.append(f"{path}{name}")
    return names


def test_each_setting_is_in_the_table_once():
    names = [entry.name for entry in list_settings()]
    assert len(set(names)) == len(names)
    assert set(names) == set(leaves(RunConfig().model_dump(), RunConfig))
    for entry in list_settings():
        assert len(entry.description) > 10 and entry.bounds, entry.name


def test_a_person_has_few_settings_to_choose_from():
    """`options` is no setting: it holds those of a plug-in, which declares them."""
    assert len([one for one in list_settings() if not one.name.endswith(".options")]) <= MOST_SETTINGS


def test_the_page_of_the_documentation_is_today_s():
    assert PAGE.read_text(encoding="utf-8") == settings_page(), (
        "the page is not of these settings; run `spotlight settings --markdown > docs/reference/settings.md`"
    )


@pytest.mark.parametrize(
    ("name", "default", "bounds"),
    [
        ("seed", 0, "integer at least 0, below 4,294,967,296"),
        ("sampling.noise_level", 0.7, "number above 0, at most 2"),
        ("sampling.sde", "flow", "flow, cps or none"),
        ("sampling.rollout_steps", 10, "integer 2 to 200"),
        ("adaptation.gradient_checkpointing", False, "true or false"),
        ("sequence_parallel.rollout", 1, "integer 1 to 64 or auto"),
        ("runtime.lease_s", 300.0, "number 1 to 2,678,400"),
        ("checkpoint.every", 1, "integer at least 1"),
        ("prompts.train", "builtin:glyphs-train", "text"),
    ],
)
def test_an_entry_says_default_and_bounds(name: str, default: Any, bounds: str):
    [entry] = list_settings(name)
    assert (entry.name, entry.default, entry.bounds) == (name, default, bounds)


def test_a_section_has_its_settings_alone():
    assert [entry.name for entry in list_settings("prompts")] == ["prompts.train", "prompts.evaluate"]
    assert list_settings("prompt") == []
