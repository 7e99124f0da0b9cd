"""Configurations that were stored with a run, an evaluation or a checkpoint."""

from __future__ import annotations

import pytest

from storage.config.loading import stored_config
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError


def test_what_was_stored_comes_back_as_it_was():
    config = RunConfig.model_validate({"runtime": {"commit_steps": 3, "cluster": "far:6379"}})
    assert stored_config(config.model_dump_json(), "run r", "use its commit") == config
    assert stored_config(config.model_dump(mode="json"), "run r", "use its commit") == config


def test_settings_that_this_version_does_not_have_are_refused():
    with pytest.raises(ConfigurationError, match=r"run r was made with other settings.*use its commit") as no:
        stored_config({"model": {"of_another_version": 1}}, "run r", "use its commit")
    assert "model.of_another_version: Extra inputs" in str(no.value)


@pytest.mark.parametrize("stored", ["{", "[1]", "3", '{"sampling": 3}'])
def test_damaged_settings_are_refused(stored: str):
    with pytest.raises(ConfigurationError, match="run r"):
        stored_config(stored, "run r", "use its commit")
