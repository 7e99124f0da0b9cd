"""Sources and their order; errors that say what to do are in `tests/bad_inputs.jsonl`."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from storage.config.loading import (
    BASES,
    PRESETS,
    assignments,
    differences,
    list_presets,
    load_config,
    stored_config,
)
from storage.config.run_config import RunConfig
from storage.config.runtime import RuntimeConfig
from storage.errors import ConfigurationError

OWN_NAMES = [
    "edits", "glyphs", "glyphs-sparse", "glyphs-stale", "moving-shapes", "shapes", "shapes-sparse",
    "shapes-stale", "smoke",
]  # fmt: skip
WITHOUT_TASK = [
    f"{family}-{side}"
    for family in ("flux", "flux2-klein", "qwen-image", "sd3.5", "z-image")
    for side in (1280, 512)
]
FAMILY_NAMES = [
    f"{family}{task}-{side}"
    for family, _, side in (name.rpartition("-") for name in WITHOUT_TASK)
    for task in ("", "-geneval", "-ocr")
]
FEW_NAMES = [
    "hunyuan-video-1.5-ocr-480", "qwen-image-2.1-ocr-1024", "sana-ocr-1024", "wan2.2-a14b-ocr-480",
    "wan2.2-ocr-480",
]  # fmt: skip
WITHOUT_TASK += [
    *(name.replace("-ocr", "") for name in FEW_NAMES),
    "qwen-image-edit-1024", "qwen-image-edit-plus-1024", "flux-kontext-1024",
]  # fmt: skip
CHEAPER = ["qwen-image-ocr-512-at-1280", "qwen-image-ocr-512-unguided"]
PRESET_NAMES = sorted({*OWN_NAMES, *FAMILY_NAMES, *FEW_NAMES, *WITHOUT_TASK, *CHEAPER})


def refusal(
    preset: str | None = None, sets: tuple[str, ...] = (), environ: dict[str, str] | None = None
) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_config(preset, sets, environ or {})
    return str(caught.value)


def test_later_sources_win(tmp_path: Path):
    preset = tmp_path / "mine.toml"
    preset.write_text("seed = 1\niterations = 11\n[sampling]\nnoise_level = 0.1\nrollout_steps = 20\n")
    environ = {"SPOTLIGHT_ITERATIONS": "12", "SPOTLIGHT_SAMPLING__NOISE_LEVEL": "0.2", "SPOTLIGHT_HOME": "/x"}
    config = load_config(str(preset), ["sampling.noise_level=0.3"], environ)
    assert (config.seed, config.iterations) == (1, 12)
    assert (config.sampling.rollout_steps, config.sampling.noise_level) == (20, 0.3)
    assert config.sampling.window_size == RunConfig().sampling.window_size


def test_a_table_is_added_to_and_an_empty_one_replaces():
    parts = ["reward.scorer=sum", "reward.options.parts.ocr=1", "reward.options.parts.jpeg=2"]
    config = load_config(None, parts, {})
    assert config.reward.options == {"parts": {"ocr": 1, "jpeg": 2}}
    assert load_config(None, assignments(config, RunConfig()), {}) == config
    more = load_config(None, [*parts, "reward.options.parts={clip-score = 3}"], {})
    assert more.reward.options == {"parts": {"ocr": 1, "jpeg": 2, "clip-score": 3}}
    assert load_config(None, ["reward.options={}"], {}, config).reward.options == {}
    again = load_config(None, ["reward.scorer=ocr", "reward.options={}"], {}, config)
    assert again == RunConfig()


def test_without_sources_it_is_the_defaults():
    assert load_config(None, [], {"PATH": "/bin", "SPOTLIGHT_HOME": "/x"}) == RunConfig()


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("name=42", {"name": "42"}),
        ("name='x=y'", None),  # not a name, but the second `=` belongs to the value
        ("model.path=/models/a b", {"model": {"path": "/models/a b"}}),
        ('model.path="quoted"', {"model": {"path": "quoted"}}),
        ("sampling.sde=cps", {"sampling": {"sde": "cps"}}),
        ("optimizer.learning_rate=5e-5", {"optimizer": {"learning_rate": 5e-5}}),
        ('adaptation.targets=["to_q", "to_k"]', {"adaptation": {"targets": ["to_q", "to_k"]}}),
        ("sampling={noise_level = 0.5}", {"sampling": {"noise_level": 0.5}}),
        (" seed = 7 ", {"seed": 7}),
        ("sampling.window_size=9", {"sampling": {"window_size": 9}}),  # the most from step 0 to 9
    ],
)
def test_values_are_toml_or_bare_text(assignment: str, expected: dict | None):
    if expected is None:
        assert "'x=y'" in refusal(sets=(assignment,))
    else:
        assert differences(load_config(None, [assignment], {})) == expected


def test_variables_of_others_are_left_alone_but_near_misses_are_not():
    assert load_config(None, [], {"SPOTLIGHT_HOME": "/x", "SPOTLIGHT_COLOUR": "red"}) == RunConfig()
    assert "did you mean iterations?" in refusal(environ={"SPOTLIGHT_ITERATION": "3"})


def test_the_presets_are_the_ones_we_promise():
    assert [preset.name for preset in list_presets()] == PRESET_NAMES
    for preset in list_presets():
        assert preset.path.read_text(encoding="utf-8").startswith("# "), preset.name
        assert len(preset.summary) > 20, preset.name


@pytest.mark.parametrize("name", [*FAMILY_NAMES, *FEW_NAMES, *WITHOUT_TASK, *CHEAPER])
def test_a_large_model_has_half_an_hour_to_be_read_or_copied(name: str):
    assert load_config(name, [], {}).runtime.start_timeout_s == 1800


@pytest.mark.parametrize("name", [*FAMILY_NAMES, *FEW_NAMES, *WITHOUT_TASK, *CHEAPER])
def test_a_large_model_s_prompt_group_has_one_window(name: str):
    sampling = load_config(name, [], {}).sampling
    assert sampling.shared_window or sampling.window_size == sampling.window_stop


def put_over(settings: dict[str, Any], file: Path) -> None:
    """Change settings by a preset or a base, after those that it extends; none repeats what is there."""
    written = tomllib.loads(file.read_text(encoding="utf-8"))
    written.pop("evidence", "")
    for base in written.pop("extends", []):
        places = (folder / f"{base}.toml" for folder in (BASES, PRESETS))
        put_over(settings, next(place for place in places if place.exists()))
    assert said_again(written, settings) == []
    for section, values in written.items():
        settings[section] = settings[section] | values if isinstance(values, dict) else values


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_a_preset_loads_and_holds_only_differences(name: str):
    config = load_config(name, [], {})
    put_over(RunConfig().model_dump(mode="json"), PRESETS / f"{name}.toml")
    assert config.name == name
    assert name in OWN_NAMES or config.model.family in name


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_a_configuration_is_written_as_assignments(name: str):
    config = load_config(name, ["name=42", "prompts.train=' a \"b\".txt'", "prompts.evaluate='\"c\"'"], {})
    assert load_config(None, assignments(config, RunConfig()), {}) == config
    assert sorted(assignments(config, load_config(name, [], {}))) == [
        "name=42",
        'prompts.evaluate="\\"c\\""',
        'prompts.train=" a \\"b\\".txt"',
    ]


def said_again(written: dict[str, Any], without: dict[str, Any]) -> list[str]:
    """Settings that have the same value where they are not written."""
    same: list[str] = []
    for name, value in written.items():
        if isinstance(value, dict):
            same += [f"{name}.{key}" for key, inner in value.items() if without[name][key] == inner]
        elif without[name] == value:
            same.append(name)
    return same


def test_evidence_is_no_setting_and_one_of_the_levels(tmp_path: Path):
    preset = tmp_path / "mine.toml"
    preset.write_text("seed = 3\n")
    before = load_config(str(preset), [], {})
    preset.write_text('evidence = "GPU curve"\nseed = 3\n')
    assert load_config(str(preset), [], {}) == before
    preset.write_text('evidence = "it works"\n')
    assert "evidence is 'it works'; write one of tiny weights, embedded run" in refusal(str(preset))


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_preset_of_a_family_has_the_size_in_its_name(name: str):
    family, _, side = name.rpartition("-")
    config = load_config(name, [], {})
    assert (config.model.height or 512, config.model.width or 512) == (int(side), int(side))
    assert family.startswith(config.model.family)
    assert config.adaptation.mode == "lora"


def test_bases_come_before_the_preset_and_are_named_in_refusals(tmp_path: Path):
    preset = tmp_path / "mine.toml"
    preset.write_text('extends = ["flux", "ocr"]\n[adaptation]\nrank = 8\n')
    config = load_config(str(preset), [], {})
    assert (config.model.family, config.reward.options) == ("flux", {"layout": "page"})
    assert (config.adaptation.rank, config.optimizer.ema_interval) == (8, 8)
    preset.write_text('extends = ["qwen-image", "qwen-image-edit"]\n')
    config = load_config(str(preset), [], {})
    assert (config.model.family, config.model.height, config.adaptation.rank) == ("qwen-image-edit", 1024, 64)
    preset.write_text('extends = ["flux", "flux-kontext"]\n')
    assert load_config(str(preset), [], {}).model.guidance == 2.5
    preset.write_text('extends = "z-image-1280"\n')
    config = load_config(str(preset), [], {})
    assert (config.model.family, config.model.height, config.reward.scorer) == ("z-image", 1280, "")
    preset.write_text('extends = "flax"\n')
    assert "extends names 'flax', and there is no such base; there are 1280, flux" in refusal(str(preset))


@pytest.mark.parametrize("name", WITHOUT_TASK)
def test_a_preset_without_a_task_has_what_its_family_s_tasks_have_too(name: str):
    without = load_config(name, [], {})
    assert (without.reward.scorer, without.prompts.train, without.prompts.evaluate) == ("", "", "")
    family, _, side = name.rpartition("-")
    if f"{family}-ocr-{side}" in PRESET_NAMES:
        task = load_config(f"{family}-ocr-{side}", [], {})
        same = {"name": "", "prompts": task.prompts, "reward": task.reward}
        assert without.model_copy(update=same) == task.model_copy(update=same)


def test_a_preset_s_own_scorer_drops_the_options_of_its_base(tmp_path: Path):
    preset = tmp_path / "mine.toml"
    preset.write_text('extends = "sd3.5-ocr-512"\n[reward]\nscorer = "mine.py:blue"\n')
    assert load_config(str(preset), [], {}).reward.options == {}
    preset.write_text('extends = ["sd3.5-512", "ocr"]\n[reward]\noptions.layout = "line"\n')
    assert load_config(str(preset), [], {}).reward.options == {"layout": "line"}


@pytest.mark.parametrize("name", [preset.name for preset in list_presets()])
def test_another_scorer_drops_the_options_that_a_preset_has_for_its_own(name: str):
    config = load_config(name, ["reward.scorer=jpeg", "evaluation.judge=clip-score"], {})
    assert (config.reward.options, config.evaluation.options) == ({}, {})
    mine = load_config(name, ["reward.options.reader=x", "reward.scorer=deepseek-ocr"], {})
    assert mine.reward.options == {"reader": "x"}, "those that a person gives stay"


def test_the_same_scorer_keeps_them():
    preset = load_config("glyphs-stale", [], {})
    assert preset.reward.options
    same = load_config("glyphs-stale", [f"reward.scorer={preset.reward.scorer}"], {})
    assert same.reward == preset.reward
    again = load_config(None, ["reward.scorer=jpeg"], {}, preset)
    assert again.reward.options == {}


def test_what_was_stored_comes_back_as_it_was():
    config = RunConfig.model_validate({"runtime": {"commit_steps": 3, "cluster": "far:6379"}})
    assert stored_config(config.model_dump(mode="json"), "run r", "use its commit") == config


def test_settings_that_this_version_does_not_have_are_refused():
    with pytest.raises(ConfigurationError, match=r"run r was made with other settings.*use its commit") as no:
        stored_config({"model": {"of_another_version": 1}}, "run r", "use its commit")
    assert "model.of_another_version: Extra inputs" in str(no.value)


@pytest.mark.parametrize("stored", [[1], 3, {"sampling": 3}])
def test_damaged_settings_are_refused(stored: Any):
    with pytest.raises(ConfigurationError, match="run r"):
        stored_config(stored, "run r", "use its commit")


def test_a_collection_in_the_middle_of_a_docstring_changes_nothing(tmp_path: Path):
    (tmp_path / "late.py").write_text(
        "from storage.config.section import Section\n"
        "class Late(Section):\n"
        "    size: int = 1\n"
        '    """How large."""\n'
    )
    # What a collection runs reads source, as another thread may that it lets run.
    disturbed = (
        "import ast, gc; from storage.config.section import Section\n"
        "gc.callbacks.append(lambda *_: gc.isenabled() and (gc.disable(), ast.parse('a = 1'), gc.enable()))\n"
        "gc.set_threshold(1)\n"
        "from late import Late; assert Late.model_fields['size'].description == 'How large.'"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-c", disturbed]
    subprocess.run(command, check=True, timeout=100, env=os.environ | {"PYTHONPATH": paths})


AT_THEIR_LIMITS = [
    "sampling.window_stop=10", "sampling.sde=cps sampling.noise_level=1",
    "algorithm.updates_per_iteration=16", "price.spot_usd_per_hour=10.98", "sequence_parallel.rollout=3",
    "model.compile=true", "budget.usd=1", "sequence_parallel.rollout=4 runtime.spot_workers=auto",
    "evaluation.size=64x64", "runtime.scorer_gpu=1",
    "adaptation.mode=lora algorithm.gradient_shards=3 runtime.trainer_workers=3",
    "runtime.trainers_leave=true", "runtime.reserved_workers=2 runtime.trainer_workers=2",
    "runtime.standby_workers=1", "runtime.standby_workers=1 runtime.spot_workers=auto",
    "exploration.drafts=1 exploration.stop_with_training=false",
    "budget.usd=1 price.reserved_usd_per_hour=0 price.spot_usd_per_hour=0 price.book=b price.offer=H100@a",
    "model.adapter=/a model.reference=adapter adaptation.mode=lora", "checkpoint.mirror=/",
    "runtime.cluster=a:1", "runtime.spot_workers=0", "runtime.spot_workers=1024",
]  # fmt: skip

CONTRADICTIONS = {
    "seed": "--set seed: write section.key=value",
    "=3": "--set =3: write section.key=value",
    "seed=-1": "seed = -1 (from --set): must be at least 0; raise it",
    "more.seed=1": "more (from --set): no such setting",
    "lr=1": "did you mean optimizer.learning_rate?",
    "sampling.steps=3": "did you mean sampling.rollout_steps?",
    "sampling.seed=1": "did you mean seed?",
    "sampling.rank=1": "did you mean adaptation.rank?",
    "sampling.sde=3": "sampling.sde = '3' (from --set): must be one of 'flow', 'cps', 'none'",
    "sampling.zzz=1": "section sampling has rollout_steps, ",
    "runtime.spot_workers=many": "give a whole number from 0 to 1,024, or auto for every device",
    "runtime.spot_workers=1025": "give a whole number from 0 to 1,024, or auto for every device",
    "sampling.window_stop=3": "leave room for 3;",
    "sampling.rollout_steps=8": "window_stop is 9, above rollout_steps=8",
    "sampling.sde=cps sampling.noise_level=1.01": "cps needs at most 1 ",
    "sampling.sde=cps sampling.window_stop=10": "must be at most rollout_steps - 1 = 9",
    "algorithm.updates_per_iteration=17": "above prompts_per_iteration=16",
    "price.spot_usd_per_hour=10.99": "above reserved_usd_per_hour=10.98",
    "price.offer=H100@a": "without price.book",
    "price.book=b": "price.offer is ''",
    "price.book=b price.offer=@a": "price.offer is '@a'",
    "price.book=b price.offer=H100@,a": "price.offer is 'H100@,a'",
    "price.book=b price.offer=H100@a,": "price.offer is 'H100@a,'",
    "runtime.scorer_gpu=0.5 model.device=cpu": "which ignores GPUs",
    "runtime.scorer_gpu=0.5 runtime.cluster=local": "divides no GPUs",
    "runtime.cluster=far": "not the address of a Ray cluster",
    "runtime.cluster=far:x": "not the address of a Ray cluster",
    "runtime.cluster=':1'": "not the address of a Ray cluster",
    "model.adapter=/a": "which trains no adapters",
    "model.reference=adapter": "no model.adapter is named",
    "budget.usd=1 price.reserved_usd_per_hour=0 price.spot_usd_per_hour=0": "no dollar would be counted",
    "sequence_parallel.rollout=4": "there are 3 workers",
    "sequence_parallel.explore=2 model.compile=true": "shared by 2 devices",
    "runtime.trainers_leave=true algorithm.advantage_std=batch": "before the last reward",
    "runtime.trainers_leave=true sequence_parallel.rollout=2": "trainers share samples",
    "runtime.reserved_workers=3 runtime.trainer_workers=3 algorithm.gradient_shards=2": "at least one shard",
    "runtime.trainer_workers=2": "reserved devices alone train with",
    "runtime.trainer_workers=2 algorithm.gradient_shards=2": "a spot device that joins is sent",
    "runtime.trainer_workers=4 algorithm.gradient_shards=4 adaptation.mode=lora": "spot_workers=2 together",
    "runtime.reserved_workers=2 runtime.trainer_workers=2 sequence_parallel.rollout=2": "one group at a time",
    "sequence_parallel.rollout=2 evaluation.size=64x64": "sequences of one length",
    "runtime.spot_workers=0 runtime.standby_workers=1": "every worker trains",
    "runtime.trainer_workers=2 algorithm.gradient_shards=2 runtime.standby_workers=1": "every worker trains",
    "exploration.fidelities=[]": "name at least one",
    "exploration.fidelities=['full','full']": "each once",
    "exploration.stop_with_training=false": "must be counted",
    "evaluation.size=64x": "evaluation.size is '64x'",
    "checkpoint.mirror=here": "checkpoint.mirror is 'here'",
    "checkpoint.mirror=s3://": "checkpoint.mirror is 's3://'",
    "checkpoint.mirror=://a": "checkpoint.mirror is '://a'",
}


@pytest.mark.parametrize("settings", AT_THEIR_LIMITS)
def test_settings_that_just_fit_together_are_taken(settings: str):
    load_config(None, settings.split(), {})


@pytest.mark.parametrize(("settings", "says"), CONTRADICTIONS.items())
def test_settings_that_cannot_be_together_are_refused(settings: str, says: str):
    text = refusal(sets=tuple(settings.split()))
    assert says in text and "settings are wrong" not in text


def test_each_wrong_setting_has_a_line():
    assert refusal(sets=("seed", "=3")).startswith("2 settings are wrong:\n--set seed: ")


def test_a_trainer_has_two_hours_or_24_leases():
    limits_s = [RuntimeConfig(lease_s=lease_s).trainer_limit_s for lease_s in (60.0, 300.0, 600.0)]
    assert limits_s == [7200.0, 7200.0, 14400.0]
