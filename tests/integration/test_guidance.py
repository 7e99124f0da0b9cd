"""Guidance of an embedded model through the whole runtime, on local processes, alone and shared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_runtime.pretraining.flow_matching import RECIPES, pretrain
from tests.drafted_iteration import drafting, rolled_out_as_alone

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("degree", [1, 2], ids=["alone", "shared"])
def test_a_guided_model_is_drafted_rolled_out_and_trained(degree: int, tmp_path: Path):
    recipe = replace(RECIPES["glyphs-guided"], training_steps=3, layers=1, codec_images=64, batch_size=8)
    folder = pretrain("glyphs-guided", tmp_path, recipe=recipe).main_folder
    with drafting("glyphs", degree, f"model.path={folder}", "model.guidance=3") as runtime:
        rolled = rolled_out_as_alone(runtime)
        report = runtime.train(rolled, runtime.reward(rolled)).report
    assert report.ratio_deviation <= runtime.config.algorithm.ratio_tolerance
