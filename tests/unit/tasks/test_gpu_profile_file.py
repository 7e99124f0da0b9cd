"""`what-if --profile` with a result of `benchmarks.gpu_day`: figures by hand, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage.config.loading import load_config
from storage.errors import ConfigurationError
from storage.home import Home
from tasks.profiles import find_profile

PARTS = {
    "step_512_b16": {"step_s": 0.8, "batch": 16},
    "step_512_b8": {"step_s": 0.5, "batch": 8},
    "step_512_b32": {"out_of_memory": "CUDA out of memory"},
    "step_512_compiled": {"step_s": 0.6, "batch": 16},
    "train_512": {"train_s": 8.0, "samples": 16, "rows": 32},
    "train_512_compiled": {"failed": "RuntimeError: no Triton"},
    "decode_512": {"decode_s_an_image": 0.04},
}


def written(folder: Path, parts: dict[str, Any], kept: bool = True, **figures: Any) -> str:
    """A result as the benchmark writes it."""
    compiled = {name: part for name, part in parts.items() if name.endswith("compiled")}
    figures = {
        "device": "NVIDIA H200", "date": "2026-11-20", "tiny": False,
        "by_stage": {
            "bits": {"status": "failed", "error": "no matter", "figures": {}},
            "qwen_image": {"status": "done", "figures": {"parts": parts}},
            "variants": {"status": "cut", "figures": {"parts": compiled}},
        },
        **figures,
    }  # fmt: skip
    path = folder / "gpu_day.json"
    path.write_text(json.dumps({"benchmark": "gpu_day", "figures": figures} if kept else figures))
    return str(path)


@pytest.mark.parametrize("kept", [True, False])
def test_what_was_measured_names_its_device_and_date_and_the_rest_is_carried(tmp_path: Path, kept: bool):
    config = load_config("qwen-image-ocr-512", ["model.guidance=1"], {})
    profile = find_profile(Home(tmp_path), config, written(tmp_path, PARTS, kept))
    assert (profile.device, profile.degrees) == ("NVIDIA H200", (1, 2, 4, 8))
    assert (profile.step_s(8), profile.step_s(16), profile.step_s(12)) == pytest.approx((0.5, 0.8, 0.65))
    assert profile.decode_s.value == 0.04
    # 32 rows in 8 s; a sample has two.
    assert profile.train_sample_s.value == pytest.approx(8 / 32 * config.sampling.window_size)
    assert set(profile.evidence["measured"]) == {"step", "decode_s", "train_sample_s"}
    for quantity in (profile.step, profile.decode_s, profile.train_sample_s):
        assert quantity.source.endswith("on NVIDIA H200, 2026-11-20")
    carried = find_profile(Home(tmp_path), config, None)
    assert profile.score_s == carried.score_s and profile.start_s == carried.start_s
    assert profile.score_s.evidence == "modelled"


def test_guidance_counts_a_step_twice(tmp_path: Path):
    config = load_config("qwen-image-ocr-512", [], {})
    assert config.model.guidance > 1
    profile = find_profile(Home(tmp_path), config, written(tmp_path, PARTS))
    assert profile.step_s(8) == pytest.approx(1.0) and profile.step.value == 1.0
    assert profile.train_sample_s.value == pytest.approx(2 * 8 / 32 * config.sampling.window_size)
    assert profile.step.source.endswith("2026-11-20, counted twice for guidance")
    assert profile.decode_s.source.endswith("2026-11-20")


def test_compiled_blocks_take_compiled_parts_and_what_failed_is_carried(tmp_path: Path):
    config = load_config("qwen-image-ocr-512", ["model.guidance=1", "model.compile=true"], {})
    profile = find_profile(Home(tmp_path), config, written(tmp_path, PARTS))
    assert profile.step_s(16) == pytest.approx(0.6) and "step_512_compiled" in profile.step.source
    assert profile.train_sample_s == find_profile(Home(tmp_path), config, "H200").train_sample_s
    assert profile.train_sample_s.evidence == "counted"


@pytest.mark.parametrize(
    ("preset", "parts", "message"),
    [
        ("qwen-image-ocr-1280", PARTS, "has no step_s at 1280x1280; measure it again"),
        ("flux-ocr-512", PARTS, "is of qwen-image at square sizes, and the run has flux at 512x512"),
    ],
)
def test_another_model_or_size_is_refused(tmp_path: Path, preset: str, parts: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        find_profile(Home(tmp_path), load_config(preset, [], {}), written(tmp_path, parts))


def test_a_result_without_its_device_is_refused(tmp_path: Path):
    path = tmp_path / "cut.json"
    path.write_text(json.dumps({"by_stage": {}, "date": "2026-11-20"}))
    with pytest.raises(
        ConfigurationError, match=r"GPU result .*: device: Field required; see docs/explanation/what-if.md"
    ):
        find_profile(Home(tmp_path), load_config("qwen-image-ocr-512", [], {}), str(path))


def test_a_rehearsal_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="of a rehearsal on the CPU; measure it on a GPU"):
        find_profile(
            Home(tmp_path), load_config("qwen-image-ocr-512", [], {}), written(tmp_path, PARTS, tiny=True)
        )
