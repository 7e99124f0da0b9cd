"""The checks of a configuration: refusals, and what it imports."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.config.sequence_parallel import AUTO, MOST_DEGREE
from storage.errors import ConfigurationError
from tasks.checks.quick_checks import with_read_options


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
        ({"algorithm": {"updates_per_iteration": 20}}, "an update needs a whole group"),
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
        (
            {
                "runtime": {"reserved_workers": 3, "trainer_workers": 3},
                "algorithm": {"gradient_shards": 2},
            },
            r"trainer_workers is 3, above algorithm\.gradient_shards=2: a device that trains",
        ),
        ({"price": {"spot_usd_per_hour": 20}}, "raise price.reserved_usd_per_hour"),
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


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"algorithm": {"ratio_tolerance": 0.01}}, r"above algorithm\.options\.clip_range=0\.001"),
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
        ({"exploration": {"strategy": "stale", "candidates": 8}}, "there is nothing to choose from"),
        ({"exploration": {"strategy": "fresh", "drafts": 3}}, "not one prompt could be explored"),
        ({"exploration": {"strategy": "stael"}}, "did you mean stale"),
        ({"model": {"height": 512}}, r"model\.height=512 is set, but model\.family is embedded"),
        ({"model": {"family": "flux"}}, "name a folder or a model"),
        ({"model": {"family": "fluks"}}, "did you mean flux"),
        ({"algorithm": {"objective": "gpro"}}, "did you mean grpo"),
        ({"algorithm": {"options": {"beta": 0.1}}}, r"algorithm\.options\.beta: no such setting"),
        (
            {"algorithm": {"objective": "grpo-guard"}, "sampling": {"sde": "cps"}},
            r"sampling\.sde is cps with algorithm\.objective=grpo-guard",
        ),
        (
            {"algorithm": {"objective": "grpo-guard", "options": {"clip_range": 2e-6}}},
            r"above algorithm\.options\.clip_range=2e-06",
        ),
        (
            {"algorithm": {"objective": "awm", "options": {"clip_range": 1.5}}},
            r"algorithm\.options\.clip_range",
        ),
        (
            {"algorithm": {"objective": "dpo"}, "sampling": {"batch_size": 5}},
            r"sampling\.batch_size is 5 with algorithm\.objective=dpo",
        ),
        (
            {"algorithm": {"objective": "dpo", "zero_variance_groups": "train"}},
            r"algorithm\.zero_variance_groups is train with algorithm\.objective=dpo",
        ),
        ({"algorithm": {"objective": "dpo", "options": {"beta": 0}}}, r"algorithm\.options\.beta"),
        ({"algorithm": {"objective": "dpo", "options": {"shared": False}}}, r"options\.shared: no such"),
    ],
)
def test_what_a_plug_in_cannot_work_with_is_refused(values: dict, said: str):
    with pytest.raises(ConfigurationError, match=said):
        with_read_options(RunConfig.model_validate(values))


def test_it_imports_without_the_heavy_libraries():
    # A GPU machine with torch alone, the dashboard, and the Prefect form all read it.
    heavy = "{'torch', 'ray', 'prefect', 'streamlit', 'mlflow', 'duckdb'}"
    program = f"import sys, storage.config.run_config; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_gpu_for_scorers_where_no_device_has_one_is_refused():
    settings = ["runtime.scorer_gpu=1", "reward.scorer=clip-score", "model.device=cpu"]
    with pytest.raises(ConfigurationError, match=r"scorer_gpu is 1 with model\.device=cpu"):
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
