"""`spotlight doctor` on a machine that works and on one that does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from flows.cli import doctor
from flows.cli.command_line import app
from gpu_runtime.models.embedded.folder import TRANSFORMER_WEIGHTS
from gpu_runtime.models.embedded.model import EmbeddedModel
from storage.config.loading import load_config
from storage.config.run_config import ModelConfig, PromptsConfig, RunConfig
from storage.errors import ConfigurationError
from storage.home import Home
from storage.record.run_folder import RUN_FILE
from storage.record.run_store import RunStore
from tasks.prices import with_gpu_prices
from tests.sample_run import write_sample_run
from tests.tampering import damage, row_files
from tests.tiny_pipelines import save_pipeline


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(doctor, "_FREE_GIB", 0.0)


def test_a_machine_that_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert doctor.examine(RunConfig())
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok") for line in lines)
    text = "\n".join(lines)
    assert f"{tmp_path / 'home'}, " in text
    assert "torch 2." in text
    assert "embedded:glyphs loads, ocr judges" in text
    assert re.search(r"model's numbers: 1,\d{3},\d{3} in the files of embedded:glyphs, all finite", text)


def test_what_is_wrong_is_said_and_the_rest_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    def load(config: RunConfig) -> str:
        raise ImportError("libGL.so.1: cannot open shared object file [bold]")

    monkeypatch.setattr(doctor, "_FREE_GIB", 1e9)
    monkeypatch.setattr(doctor, "_PACKAGES", ("a-package-that-is-not-there",))
    monkeypatch.setattr(doctor, "_model_and_scorer", load)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "[red]home[/]"))
    assert not doctor.examine(RunConfig())
    text = capsys.readouterr().out
    wrong = [line.split(":")[0] for line in text.splitlines() if line.startswith("wrong")]
    assert wrong == ["wrong packages", "wrong home", "wrong model and scorer", "wrong prefect"]
    assert "/[red]home[/] has" in text and "free some, or set SPOTLIGHT_HOME" in text
    assert "start it or unset the variable" in text
    assert "ok    records: 0 runs" in text
    assert "wrong model and scorer: libGL.so.1: cannot open shared object file [bold]\n" in text


def test_a_file_of_too_few_prompts_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "four.txt").write_text("".join(f'a red sign that says "A{n}"\n' for n in range(4)))
    assert not doctor.examine(RunConfig(prompts=PromptsConfig(train=str(tmp_path / "four.txt"))))
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("wrong prompts: prompts.train names a file of 4 prompts") for line in lines)
    assert "wrong model and scorer: not checked: see prompts" in lines
    assert sum("4 prompts" in line for line in lines) == 1


def test_a_model_with_a_number_that_is_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    EmbeddedModel.load("embedded:glyphs").save(tmp_path / "model")
    file = tmp_path / "model" / TRANSFORMER_WEIGHTS
    tensors = load_file(file)
    tensors["proj_out.weight"][3, 5] = float("nan")
    save_file(tensors, file)
    assert not doctor.examine(RunConfig(model=ModelConfig(path=str(tmp_path / "model"))))
    wrong = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wrong")]
    assert [line.split(":")[0] for line in wrong] == ["wrong model and scorer", "wrong model's numbers"]
    for line in wrong:
        assert re.search(
            r"diffusion_pytorch_model.safetensors: 1 of the [\d,]+ values of proj_out.weight", line
        )


def test_damaged_files_of_runs_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    def said() -> str:
        return next(line for line in capsys.readouterr().out.splitlines() if " records: " in line)

    monkeypatch.setattr(doctor, "_model_and_scorer", lambda *_: "not asked")
    store = RunStore(Home(tmp_path / "home").ensure())
    write_sample_run(store, "r", iterations=2)
    assert doctor.examine(RunConfig())
    assert said() == "ok    records: 1 runs, all files whole"
    [file] = row_files(store, "r", "samples")
    damage(file)
    assert not doctor.examine(RunConfig())
    assert f"1 files of runs are damaged, the first one {file}" in said()
    description = store.home.run("r") / RUN_FILE
    description.write_bytes(b"not JSON" * 1000)
    assert not doctor.examine(RunConfig())
    assert f"{description} is damaged" in said()
    description.unlink()
    assert not doctor.examine(RunConfig())
    assert f"{store.home.run('r')} has no run.json" in said()


def test_a_preset_of_a_large_model_needs_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for check in ("_model_and_scorer", "_numbers", "_devices"):
        monkeypatch.setattr(doctor, check, lambda config: "not asked")
    assert not doctor.examine(load_config("sd3.5-ocr-512", [], {}))
    said = capsys.readouterr().out
    assert "wrong device: no GPU, and sd3.5-ocr-512 needs one: stabilityai/stable-diffusion-3.5-med" in said
    assert "`spotlight doctor --gpu H100`" in said
    small = save_pipeline("sd3.5", tmp_path / "model")
    assert doctor.examine(load_config("sd3.5-ocr-512", [f"model.path={small}"], {}))
    assert "ok    device: no GPU: models run on the CPU" in capsys.readouterr().out


def sized(*arguments: str, fits: bool = True) -> str:
    result = CliRunner().invoke(app, ["doctor", *arguments], catch_exceptions=False, env={"COLUMNS": "80"})
    assert result.exit_code == (0 if fits else 1)
    return result.stdout


def test_a_run_is_sized_without_weights_and_without_a_gpu():
    said = sized("--preset", "qwen-image-ocr-512", "--gpu", "H100")
    assert (
        "H100 (79.1 GiB), memory counted and not measured: it fits on a device that trains, and fits" in said
    )
    # 60 blocks of two streams of 18 widths of 3072 at rank 64, in float32.
    adapters = 60 * 2 * 18 * 3072 * 64 * 4 / 2**30
    for name, size in {
        "transformer": 20.43e9 * 2 / 2**30, "adapters, float32": adapters, "gradients": adapters,
        "AdamW's moments": 2 * adapters, "text encoders": 8.29e9 * 2 / 2**30,
    }.items():  # fmt: skip
        assert re.search(rf"\n {name} +{size:.1f} ", said), name
    for name in ("activations of a batch", "decoding an image", "training batch, with checkpointing"):
        assert re.search(rf"\n {name} +\d+\.\d to \d+\.\d ", said), name
    assert re.search(r"\ntraining batch, without checkpointing: [\d.]+ to [\d.]+ GiB instead\n", said)
    hours = {
        int(n): float(h) for n, h in re.findall(r"\n  (\d) x H100: ([\d.]+) h \([\d.]+ to [\d.]+\), \$", said)
    }
    assert list(hours) == [1, 4, 8] and hours[8] < hours[4] < hours[1]
    assert "40 iterations, all devices on demand and training, simulated from measured steps (low" in said
    assert "assumed: score_s, weights_s, start_s" in said
    assert "\nfor all to train: --set runtime.trainer_workers=8 --set algorithm.gradient_shards=8\n" in said
    shared = ("--set", "runtime.reserved_workers=4", "--set", "sequence_parallel.rollout=2")
    alone = sized("--preset", "qwen-image-ocr-512", *shared, "--gpu", "H100")
    assert "\n  4 x H100: " in alone and "for all to train" not in alone, "only one may train"


def test_doctor_and_what_if_give_one_answer():
    question = ("--preset", "sd3.5-ocr-512", "--set", "iterations=3", "--set", "runtime.reserved_workers=2")
    found = re.search(r"\n  2 x H100: (.*? h \(.*?\)), (\$.*)\n", sized(*question, "--gpu", "H100"))
    asked = ("--spot", "0", "--trainers", "2", "--policies", "reserved", "--gpu", "H100")
    answer = CliRunner().invoke(app, ["what-if", *question, *asked], catch_exceptions=False).stdout
    assert found is not None and f"reserved: {found[1]} and {found[2]} for 3 iterations" in answer


def test_a_preset_without_a_task_is_sized_as_with_a_detector():
    bare = ("--preset", "sd3.5-512", "--gpu", "H100")
    said, like = sized(*bare), sized(*bare, "--set", "reward.scorer=geneval")
    assert "no reward is set: 0.15 s an image, like a detector's, stand in for it" in said
    assert "no reward is set" not in like, "prompts are not needed"
    assert re.findall(r"\n  \d x H100: .*", said) == re.findall(r"\n  \d x H100: .*", like) != []


def test_what_does_not_fit_and_what_has_no_price_is_said(tmp_path: Path):
    said = sized("--preset", "flux-ocr-512", "--gpu", "rtx4090", fits=False)
    assert "it does not fit on a device that trains, and does not fit on one that only generates" in said
    assert "the price of an RTX4090 is unknown" in said and "$" not in said
    assert "spot_usd_per_hour" not in said, "all devices are on demand"
    paid = ("--set", "price.reserved_usd_per_hour=5")  # the price of a spot device is not asked for
    alone = ("--set", "runtime.reserved_workers=2", "--set", "adaptation.gradient_checkpointing=false")
    said = sized("--preset", "sd3.5-ocr-512", "--gpu", "RTX4090", *paid, *alone)
    assert "it may not fit on a device that trains, and fits on one that only generates" in said
    assert re.search(r"\n  2 x RTX4090: \S+ h \(\S+ to \S+\), \$[\d.]+ \(\$[\d.]+ to \$[\d.]+\)", said)
    book = ("--set", "price.book=builtin:known", "--set", "price.offer=H100@aws/lowest")
    said = sized("--preset", "sd3.5-ocr-512", "--gpu", "H100", *alone[:2], *book)
    hours, usd = re.findall(r"\n  2 x H100: (\S+) h \(\S+ to \S+\), \$(\S+) ", said)[0]
    assert float(usd) == pytest.approx(2 * 6.88 * float(hours), rel=0.02), "the book's price, not a default"
    (tmp_path / "book.csv").write_text("device,market,zone,usd_per_hour\nH100,on_demand,here,2.0\n")
    book = ("--set", f"price.book={tmp_path / 'book.csv'}", "--set", "price.offer=H100@here")
    said = sized("--preset", "sd3.5-ocr-512", "--gpu", "H100", *alone[:2], *book)
    assert "no price of H100 spot" not in said and "$" in said, "the book has no spot device"
    with pytest.raises(ConfigurationError, match=r"price of an A100 .*: price\.reserved_usd_per_hour, or"):
        asked_prices = load_config("sd3.5-ocr-512", ["price.spot_usd_per_hour=1.6"], {})
        with_gpu_prices(asked_prices, "A100", "A100")
    with pytest.raises(ConfigurationError, match="only adapters on a model in bfloat16 are counted"):
        sized("--preset", "sd3.5-ocr-512", "--gpu", "H100", "--set", "model.dtype=float32")
    with pytest.raises(ConfigurationError, match="the times of embedded:glyphs are not counted"):
        sized("--preset", "glyphs", "--gpu", "H100")
