"""The GPU benchmark's own parts: operations by formula, stages that fail alone, wheels, documents."""

from __future__ import annotations

import json
import os
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import QwenImageTransformer2DModel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import report
from benchmarks.documents.gpu_document import NOT_YET, headline, profiles, section
from benchmarks.gpu import gpu_day
from benchmarks.gpu.carried_wheels import CARRIED, pins, repack
from benchmarks.gpu.disturbed import timeline
from benchmarks.gpu.gpu_day import Day, run, stages, summary
from benchmarks.gpu.measured_parts import MeasuredParts
from benchmarks.gpu.plan import REAL, TINY, TransformerShape
from benchmarks.gpu.profiled_model import TARGETS
from benchmarks.gpu.sized_qwen import SizedQwen, build_parts
from benchmarks.gpu.stages import Fault, Figures, Reporter, Setting, Stage, run_stage
from gpu_runtime.learning.policy import Policy
from storage.config.loading import load_config
from storage.config.run_config import AdaptationConfig
from storage.home import Home
from storage.record.records import StateInterval
from tasks import profiles as named_profiles
from tasks.gpu_profile import GpuDayResult, measured_profile
from tasks.profiles import PROFILES, find_profile
from ui.elements.palette import STATE_COLOURS

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")


def on_meta(shape: TransformerShape) -> Any:
    with torch.device("meta"):
        return QwenImageTransformer2DModel(**shape.arguments())


@pytest.mark.parametrize(
    ("shape", "side", "text"), [(TINY.shape, 4, 8), (REAL.shape, 32, 128), (REAL.shape, 80, 128)]
)
def test_the_formula_of_a_denoising_step_is_what_torch_counts(shape: TransformerShape, side: int, text: int):
    transformer, counter = on_meta(shape), FlopCounterMode(display=False)
    sizes = (1, side**2, shape.channels), (1, text, shape.text_width), (1,)
    latents, encoded, timestep = (torch.empty(size, device="meta") for size in sizes)
    with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        transformer(latents, encoded, timestep=timestep, img_shapes=[[(1, side, side)]])
    assert shape.architecture.operations(side**2, text).forward == counter.get_total_flops()


def test_the_real_size_has_twenty_billion_weights():
    transformer = on_meta(REAL.shape)
    assert 20.4e9 < sum(weight.numel() for weight in transformer.parameters()) < 20.5e9


def test_the_formula_of_a_training_pass_is_near_what_torch_counts():
    plan = replace(TINY, pixels={1280: 128})
    model = SizedQwen(build_parts(plan, CPU), plan, 1280, CPU)
    adaptation = AdaptationConfig.model_validate({"mode": "lora", "rank": TINY.rank, "targets": TARGETS})
    Policy(model, adaptation, seed=0, keeps_reference=False)
    latents = torch.randn(1, *model.latent_shape)
    counter = FlopCounterMode(display=False)
    encoded = model.encode_prompts(["a"])
    with counter, sdpa_kernel(SDPBackend.MATH):
        model.velocity(latents, torch.tensor([0.5]), encoded).square().mean().backward()
    tokens = plan.image_tokens(1280), TINY.text_length
    flops = TINY.shape.architecture.operations(*tokens, TINY.rank)
    expected = flops.forward + flops.adapters + flops.backward
    # The first block's input needs no gradient, which the formula does not know: a part of two layers here.
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.12)
    assert counter.get_total_flops() <= expected


def test_random_weights_let_an_image_through():
    model = SizedQwen(build_parts(TINY, CPU), TINY, 512, CPU)
    latents = torch.randn(2, *model.latent_shape)
    velocity = model.velocity(latents, torch.full((2,), 0.5), model.encode_prompts(["a", "b"]))
    assert velocity.dtype == torch.float32 and velocity.isfinite().all()
    assert model.decode(latents).shape == (2, TINY.pixels[512], TINY.pixels[512], 3)
    assert model.sigmas(4)[[0, -1]].tolist() == [1.0, 0.0]


def test_one_measurement_that_fails_costs_no_other_one():
    flushed: list[list[str]] = []
    ticks = iter([0.0, 1.0, 1.0, 2.0, 3.0, 3.0, 5.0, 6.0, 6.0, 9.0, 10.0])
    parts = MeasuredParts(CPU, 10.0, lambda found: flushed.append(list(found)), clock=lambda: next(ticks))

    def too_large() -> dict[str, Any]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB\nmore words")

    def broken() -> dict[str, Any]:
        raise KeyError("no such kernel")

    parts.take("large", too_large)
    parts.take("broken", broken)
    assert parts.take("fine", lambda: {"step_s": 0.5})["step_s"] == 0.5
    parts.take("late", broken)
    assert parts.found["large"]["out_of_memory"] == "CUDA out of memory. Tried to allocate 80 GiB"
    assert "KeyError" in parts.found["broken"]["failed"]
    assert parts.found["fine"]["measuring_s"] == 3.0
    assert "budget of 10 s" in parts.found["late"]["skipped"]
    assert flushed[-1] == ["large", "broken", "fine", "late"]
    with pytest.raises(RuntimeError, match=r"large: CUDA out of memory.*broken: KeyError"):
        parts.refuse_failures()


def steady(setting: Setting, report: Reporter) -> None:
    report(first=1)
    report(second=2)


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        (None, "done", ""),
        ("kill", "failed", "ended by signal or exit -9"),
        ("raise", "failed", "RuntimeError: a planted fault"),
        ("hang", "cut", "ended by its limit of 4 s"),
    ],
)
def test_a_stage_leaves_what_it_has_found_however_it_ends(fault: Fault | None, status: str, said: str):
    flushed: list[Figures] = []
    began = time.monotonic()
    found = run_stage(
        Stage("steady", 4.0, steady), Setting("cpu", True, 4.0),
        lambda figures: flushed.append(json.loads(json.dumps(figures))), fault,
    )  # fmt: skip
    assert found["status"] == status and said in found.get("error", "")
    assert found["figures"] == ({"first": 1, "second": 2} if fault is None else {"first": 1})
    assert flushed[0]["figures"] == {"first": 1} and time.monotonic() - began < 60


def test_a_stage_that_is_killed_costs_no_other_one_and_another_try_replaces_it(tmp_path: Path):
    named = {"device": "cpu", "date": "2026-11-27", "commit": "abc", "tiny": True}
    day = Day(named, {}, {}, [tmp_path])
    chosen = [Stage("one", 60.0, steady), Stage("two", 60.0, steady), Stage("three", 60.0, steady)]
    setting = Setting("cpu", True, 0.0)
    run(day, chosen, setting, 180.0, ("two", "kill"))
    written = json.loads((tmp_path / "gpu_day.json").read_text())["figures"]
    assert (written["stages"], written["failed"]) == (3, 1)
    assert [stage["status"] for stage in written["by_stage"].values()] == ["done", "failed", "done"]
    again = Day(named, {}, written["by_stage"], [tmp_path])
    run(again, chosen[1:2], setting, 60.0, None)
    written = json.loads((tmp_path / "gpu_day.json").read_text())["figures"]
    assert (written["stages"], written["failed"]) == (3, 0)
    run(again, chosen[2:], setting, 1.0, None)
    assert again.by_stage["three"]["status"] == "skipped" and again.figures()["stages"] == 2


def test_the_summary_has_every_wanted_figure_and_none_for_what_is_missing():
    assert set(summary({}).values()) == {None}
    found = {
        "bits": {"figures": {"bits_equal": True}},
        "runtime": {"figures": {"run_bits_equal": False, "added_share": 0.01}},
        "learning": {"figures": {"score_before": 0.2, "score_after": 0.35, "time_to_gain_s": 20.0}},
        "learning_cpu": {"figures": {"time_to_gain_s": 300.0}},
    }
    figures = summary(found)
    assert figures["bits_equal"] is False and figures["added_share"] == 0.01
    assert figures["score_gain"] == pytest.approx(0.15)
    assert (figures["time_to_gain_s"], figures["time_to_gain_on_cpu_s"]) == (20.0, 300.0)
    assert {stage.name for stage in stages()} >= found.keys() - {"learning_cpu"}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of kept results, of a benchmark that has just begun and forks nothing with imports done."""
    (folder := tmp_path / "results").mkdir()
    for module in (gpu_day, report):
        monkeypatch.setattr(module, "RESULTS", folder)
    monkeypatch.setattr(gpu_day, "_FORKED", ())
    monkeypatch.setattr(gpu_day, "process_age_s", lambda: 1.0)  # pytest may have run for the whole budget
    monkeypatch.setattr("os.environ", os.environ.copy())
    return folder


def test_the_time_on_a_cpu_stands_beside_what_a_gpu_has_shown(results: Path, monkeypatch: pytest.MonkeyPatch):
    def learn(setting: Setting, report: Reporter) -> None:
        report(time_to_gain_s=300.0 if setting.limit_s > 1000 else None)

    of_gpu = kept(learning={"status": "done", "seconds": 50.0, "figures": {"time_to_gain_s": 20.0}})
    of_gpu["figures"]["machine"] = {"cpus": 16}
    (results / "gpu_day.json").write_text(json.dumps(of_gpu))
    monkeypatch.setattr(gpu_day, "stages", lambda: [Stage("learning", 60.0, learn)])
    monkeypatch.setattr(
        "sys.argv", ["gpu_day", "--only", "learning", "--device", "cpu", "--keep", "--commit", "def"]
    )
    gpu_day.main()
    result = json.loads((results / "gpu_day.json").read_text())
    assert {name: stage["device"] for name, stage in result["figures"]["by_stage"].items()} == {
        "learning": "NVIDIA H100 80GB HBM3", "learning_cpu": "cpu",
    }  # fmt: skip
    text = section(result)
    assert "| seconds until an evaluation shows a gain of 0.1 | 20.0 |" in text
    assert "| the same on two CPU cores | 300.0 |" in text
    assert "Measured on one NVIDIA H100 80GB HBM3, 2026-11-28, commit `abc`." in text
    alone = {name: result["figures"]["by_stage"][name] for name in ("learning_cpu",)}
    of_cpu = {**result, "figures": {**result["figures"], "device": "cpu", "by_stage": alone}}
    assert section(of_cpu).startswith(NOT_YET) and headline(of_cpu).startswith(NOT_YET)


def test_figures_of_another_gpu_stay_as_they_are(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def look(setting: Setting, report: Reporter) -> None:
        report(device="NVIDIA H200", expandable_segments=True)

    out = tmp_path / "out"
    before = json.dumps(kept(runtime={"status": "done", "seconds": 50.0, "figures": {}}))
    (results / "gpu_day.json").write_text(before)
    monkeypatch.setattr(gpu_day, "look", look)
    monkeypatch.setattr(gpu_day, "stages", lambda: [Stage("bits", 60.0, steady)])
    command = ["gpu_day", "--keep", "--commit", "def"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit, match="are of NVIDIA H100 80GB HBM3, and this is NVIDIA H200: give --out"):
        gpu_day.main()
    monkeypatch.setattr("sys.argv", [*command, "--out", str(out)])
    gpu_day.main()
    assert (results / "gpu_day.json").read_text() == before
    found = json.loads((out / "gpu_day.json").read_text())
    assert (found["device"], found["commit"]) == ("NVIDIA H200", "def")
    assert found["figures"]["by_stage"].keys() == {"bits"}


def test_a_time_line_has_a_row_for_each_device():
    shown = timeline(
        [
            StateInterval("reserved-0", "reserved", "train", 0.0, 4.0, 1.0),
            StateInterval("spot-0", "spot", "idle", 0.0, 3.0, 1.0),
            StateInterval("spot-0", "spot", "explore", 3.0, 4.0, 1.0),
        ]
    )
    pixels = np.asarray(shown)[[10, 32], shown.width * 3 // 4]
    assert [f"#{bytes(pixel).hex()}" for pixel in pixels] == [STATE_COLOURS["train"], STATE_COLOURS["idle"]]


def test_every_carried_wheel_has_a_version():
    versions = pins(CARRIED, (ROOT / "constraints.txt").read_text())
    assert len(versions) == len(CARRIED) and all("==" in version for version in versions)


def test_rapidocr_travels_with_its_recogniser_alone(tmp_path: Path):
    wheel = tmp_path / "rapidocr-3-py3-none-any.whl"
    files = {
        "rapidocr/models/a_rec_small.onnx": "weights",
        "rapidocr/models/a_det_small.onnx": "weights",
        "rapidocr/ch_ppocr_det/utils.py": "import cv2\nimport pyclipper\nfrom shapely import box\n",
        "rapidocr-3.dist-info/RECORD": "rapidocr/models/a_rec_small.onnx,sha256=x,7\n"
        "rapidocr/models/a_det_small.onnx,sha256=y,7\nrapidocr/ch_ppocr_det/utils.py,sha256=z,9\n",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    repack(wheel)
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == files.keys() - {"rapidocr/models/a_det_small.onnx"}
        assert archive.read("rapidocr/ch_ppocr_det/utils.py") == b"import cv2\n"
        assert archive.read("rapidocr-3.dist-info/RECORD").decode().splitlines() == [
            "rapidocr/models/a_rec_small.onnx,sha256=x,7", "rapidocr/ch_ppocr_det/utils.py,,",
        ]  # fmt: skip


def kept(**by_stage: Any) -> dict[str, Any]:
    """A kept result of a GPU."""
    figures = {
        "device": "NVIDIA H100 80GB HBM3", "date": "2026-11-28", "commit": "abc", "tiny": False,
        **summary(by_stage), "by_stage": {name: {**found, "device": "NVIDIA H100 80GB HBM3"}
                                          for name, found in by_stage.items()},
    }  # fmt: skip
    return {"commit": "abc", "device": figures["device"], "date": "2026-11-28", "figures": figures}


def test_documents_say_what_was_measured_or_that_nothing_was():
    assert headline(None).startswith(NOT_YET) and section(None).startswith(NOT_YET)
    assert profiles(None, PROFILES) == {}
    result = kept(
        bits={"status": "done", "figures": {"bits_equal": True, "ratio_deviation_float32": 0.0}},
        qwen_image={"status": "cut", "error": "ended by its limit of 110 s",
                    "figures": {"rollout_512_mfu": 0.61}},
    )  # fmt: skip
    text = section(result)
    assert "| rollout at 512², share of the limit | 61% | 50 % |" in text
    assert "| 0e+00 | 0 |" in text and "| training with compiled blocks | – | 40 % |" in text
    assert "- Stage `qwen_image` cut: ended by its limit of 110 s" in text
    assert "Measured on one NVIDIA H100 80GB HBM3, 2026-11-28, commit `abc`." in text
    assert headline(result) == (
        "On one NVIDIA H100 80GB HBM3: a killed run of the embedded model ends with the same bits.\n"
    )


def test_measured_figures_replace_counted_ones_in_the_profiles_of_that_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    parts = {
        "step_512_b8": {"step_s": 0.4, "batch": 8}, "step_512_b1": {"step_s": 0.07, "batch": 1},
        "train_512": {"train_s": 8.0, "rows": 16}, "decode_512": {"decode_s_an_image": 0.03},
    }  # fmt: skip
    result = kept(qwen_image={"status": "done", "figures": {"parts": parts}})
    parts["step_1280_b1"] = {"step_s": 0.3, "batch": 1, "mfu": 0.3}
    parts["rollout_512"] = {"rollout_s": 5.0}
    written = profiles(result, tmp_path)
    [(path, text)] = written.items()
    assert path.name == "qwen-image-h100.json" and "mfu" not in text and "rollout" not in text
    path.write_text(text)
    config = load_config("qwen-image-ocr-512", [], {})
    counted, other = (find_profile(Home(tmp_path), config, gpu) for gpu in ("H100", "A100"))
    monkeypatch.setattr(named_profiles, "PROFILES", tmp_path)
    assert find_profile(Home(tmp_path), config, "A100") == other, "which was not measured"
    after = find_profile(Home(tmp_path), config, "H100")
    assert after == find_profile(Home(tmp_path), config, None)
    by_hand = measured_profile(GpuDayResult.model_validate(result), config)
    assert after == by_hand.model_copy(update={"name": path.stem})
    assert set(after.evidence["measured"]) == {"step", "decode_s", "train_sample_s"}
    assert (after.step_s(8), after.step_s(1)) == pytest.approx((0.8, 0.14))  # guidance: two passes
    assert after.train_sample_s.value == pytest.approx(2 * 8 / 16 * 2)
    assert after.score_s == counted.score_s and after.models == counted.models
    for degree in (2, 4, 8):
        assert after.step_s(8, degree) / after.step_s(8) == pytest.approx(
            counted.step_s(8, degree) / counted.step_s(8), rel=1e-5
        )
