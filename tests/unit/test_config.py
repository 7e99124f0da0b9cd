"""The configuration's own checks, and that it survives its way through JSON."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from storage.config.loading import load_config
from storage.config.run_config import RunConfig, SamplingConfig
from storage.config.sequence_parallel import AUTO, MOST_DEGREE
from storage.errors import ConfigurationError


def test_defaults_are_valid_and_round_trip_through_json():
    config = RunConfig()
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config


def test_it_is_frozen():
    with pytest.raises(ValidationError):
        RunConfig().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"sampling": {"window_size": 5, "window_stop": 4}}, "leave room for 4"),
        ({"sampling": {"window_stop": 11}}, "above rollout_steps=10"),
        ({"sampling": {"sde": "cps", "noise_level": 1.2}}, "cps needs at most 1"),
        ({"sampling": {"sde": "cps", "window_stop": 10}}, "no noise in the last step"),
        ({"algorithm": {"ratio_tolerance": 0.01}}, "above clip_range"),
        ({"algorithm": {"updates_per_iteration": 20}}, "an update needs a whole group"),
        (
            {"exploration": {"strategy": "stale"}, "runtime": {"spot_workers": 0}},
            "every device trains, so none could explore",
        ),
        (
            {
                "exploration": {"strategy": "stale"},
                "runtime": {"reserved_workers": 2, "trainer_workers": 2, "spot_workers": 0},
            },
            "runtime.reserved_workers=2 and runtime.spot_workers=0: every device trains",
        ),
        (
            {"runtime": {"reserved_workers": 2, "trainer_workers": 3}},
            "runtime.trainer_workers is 3, above runtime.reserved_workers=2",
        ),
        (
            {
                "runtime": {"reserved_workers": 2, "trainer_workers": 2},
                "sequence_parallel": {"rollout": 2},
            },
            "trainer_workers is 2 and sequence_parallel shares samples between up to 2 devices",
        ),
        ({"price": {"spot_usd_per_hour": 20}}, "raise price.reserved_usd_per_hour"),
        ({"runtime": {"notices": "none@http://10.0.0.1"}}, "none asks no address"),
        ({"runtime": {"notices": "kubernetes@http://10.0.0.1"}}, "name one of aws, gcp, azure, alibaba"),
        ({"runtime": {"notices": "gcp@"}}, "or an address too, as in gcp@http://HOST:PORT"),
        ({"runtime": {"notices": "oracle"}}, "runtime.notices is 'oracle'; it must be one of none, aws"),
        ({"runtime": {"lease_s": 0}}, "lease_s"),
        (
            {"sequence_parallel": {"rollout": 0}},
            r"sequence_parallel\.rollout is 0; give the number of devices.* from 1 to 64, or auto",
        ),
        ({"sequence_parallel": {"evaluate": "most"}}, r"sequence_parallel\.evaluate is 'most'; .*or auto"),
        ({"sequence_parallel": {"rollout": 65}}, "less than or equal to 64"),
        ({"sequence_parallel": {"rollout": -2}}, "is -2; give"),
        ({"sequence_parallel": {"rollout": "0"}}, "is 0; give"),
        ({"runtime": {"cluster": "locl"}}, "'locl', which is no address of a Ray cluster; give HOST"),
        ({"name": "../elsewhere"}, "name"),
        ({"seed": 2**32}, "seed"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_what_cannot_work_is_refused(values: dict, said: str):
    with pytest.raises(ValidationError, match=said):
        RunConfig.model_validate(values)


def test_every_setting_has_a_description():
    def undescribed(model: type) -> list[str]:
        fields = model.model_fields.items()  # type: ignore[attr-defined]
        return [
            name
            for name, field in fields
            if not field.description and not hasattr(field.annotation, "model_fields")
        ]

    sections = [field.annotation for field in RunConfig.model_fields.values()]
    models = [RunConfig, *(s for s in sections if isinstance(s, type) and hasattr(s, "model_fields"))]
    assert {model.__name__: undescribed(model) for model in models} == {m.__name__: [] for m in models}
    assert SamplingConfig in models


def test_it_imports_without_the_heavy_libraries():
    # A GPU machine with torch alone, the dashboard, and the Prefect form all read it.
    heavy = "{'torch', 'ray', 'prefect', 'streamlit', 'mlflow', 'duckdb'}"
    program = f"import sys, storage.config.run_config; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["runtime.scorer_gpu=0.5"], r"runtime\.scorer_gpu is 0\.5, but ocr judges on the CPU"),
        (["runtime.scorer_gpu=1", "reward.scorer=clip-score", "model.device=cpu"], r"with model\.device=cpu"),
    ],
)
def test_a_gpu_that_no_scorer_would_use_is_refused(settings: list[str], message: str):
    with pytest.raises(ConfigurationError, match=message):
        load_config("glyphs", settings, {})


def test_a_degree_that_measured_times_choose_is_stored_as_it_is_written():
    shared = {"rollout": "auto", "evaluate": 2}
    config = RunConfig.model_validate({"runtime": {"spot_workers": 3}, "sequence_parallel": shared})
    assert config.model_dump(mode="json")["sequence_parallel"] == shared | {"explore": 1}
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert RunConfig.model_validate(config.model_dump()) == config
    assert (config.sequence_parallel.rollout, config.sequence_parallel.largest) == (AUTO, MOST_DEGREE)
    assert config.sequence_parallel.is_measured and not RunConfig().sequence_parallel.is_measured
    assert RunConfig().sequence_parallel.largest == 1
