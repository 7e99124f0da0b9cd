"""No preset, and not the README, claims more than what is kept in `benchmarks/results` shows."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from benchmarks.exploration.arms import TASKS
from benchmarks.report import RESULTS
from gpu_runtime.models.embedded.folder import WEIGHTS_FOLDER
from storage.config.loading import EVIDENCE, Preset, list_presets, load_config
from storage.config.model import EMBEDDED_PREFIX
from tests.documents import ROOT

EXACT = 1e-5
"""Largest difference from diffusers that the README and the documents name."""


def kept(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["figures"] if path.is_file() else {}


def stages_done_on_a_gpu() -> set[str]:
    figures = kept("gpu_day")
    stages = figures.get("by_stage", {}) if figures.get("device", "cpu") != "cpu" else {}
    return {name for name, found in stages.items() if found["status"] == "done"}


def learned_tasks() -> set[str]:
    """Embedded tasks of which learning curves are kept, by the first word of the models that learn them."""
    names = [path.parent.name for path in (RESULTS / "curves").glob("exploration-*/*")]
    tasks = {name.removeprefix("exploration-") for name in names if kept(name)}
    learned = {task_of(TASKS[task].preset) for task in tasks}
    return learned | ({"moving-shapes"} if kept("moving_shapes").get("gain", 0) >= 0.1 else set())


def task_of(preset: str) -> str:
    path = load_config(preset, [], {}).model.path
    name = path.removeprefix(EMBEDDED_PREFIX)
    return name.removesuffix("-sparse") if path.startswith(EMBEDDED_PREFIX) else ""


def shown(preset: Preset) -> set[str]:
    """Levels of evidence that kept results give a preset."""
    model, on_gpu = load_config(preset.name, [], {}).model, stages_done_on_a_gpu()
    same = {
        one["name"] for one in kept("families")["families"]
        if one["lora_roundtrip"] and max(one["max_abs_error"], one["lora_max_abs_error"]) <= EXACT
    }  # fmt: skip
    carried = model.path.startswith(EMBEDDED_PREFIX)
    found = {
        "tiny weights": model.family in same,
        "real weights loaded": carried
        and (WEIGHTS_FOLDER / model.path.removeprefix(EMBEDDED_PREFIX)).is_dir(),
        "embedded curve": task_of(preset.name) in learned_tasks(),
        "one GPU step": model.family == "qwen-image" and "qwen_image" in on_gpu,
        "GPU curve": carried and "learning" in on_gpu,
    }
    assert found.keys() == set(EVIDENCE)
    return {level for level, is_shown in found.items() if is_shown}


@pytest.mark.parametrize("preset", list_presets(), ids=lambda preset: preset.name)
def test_a_preset_claims_what_is_kept(preset: Preset):
    assert preset.evidence in shown(preset)


def test_the_readme_claims_what_its_presets_do():
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| models |")[2].partition("\n\n")[0]
    claims: dict[str, str] = {}
    for row in table.splitlines()[2:]:
        models, _, evidence = (cell.strip() for cell in row.strip("|").split("|"))
        named = re.findall(r"[A-Za-z][\w.-]+", models.removeprefix("embedded: "))
        claims |= {
            name.lower().replace("flux.1", "flux").replace("flux.2", "flux2"): evidence for name in named
        }
    for preset in list_presets():
        model = load_config(preset.name, [], {}).model
        name = task_of(preset.name) or model.family
        level = next(level for level in EVIDENCE if claims[name].startswith(level))
        assert preset.evidence == level or preset.name == "smoke", preset.name
