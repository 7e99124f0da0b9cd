"""`spotlight doctor` on a machine that works and on one that does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from flows.cli import doctor
from gpu_runtime.models.embedded.folder import TRANSFORMER_WEIGHTS
from gpu_runtime.models.embedded.model import EmbeddedModel
from storage.config.run_config import ModelConfig, RunConfig
from storage.home import Home
from storage.record.run_folder import RUN_FILE
from storage.record.run_store import RunStore
from tests.sample_run import write_sample_run
from tests.tampering import damage, row_files


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(doctor, "_FREE_GIB", 0.0)


def test_a_machine_that_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert doctor.examine()
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok") for line in lines)
    text = "\n".join(lines)
    assert f"{tmp_path / 'home'}, " in text
    assert "torch 2." in text
    assert "embedded:glyphs loads, ocr judges" in text
    assert re.search(r"model's numbers: 1,\d{3},\d{3} in the files of embedded:glyphs, all finite", text)


def test_what_is_wrong_is_said_and_the_rest_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(doctor, "_FREE_GIB", 1e9)
    monkeypatch.setattr(doctor, "_PACKAGES", ("a-package-that-is-not-there",))
    monkeypatch.setattr(doctor, "_model_and_scorer", lambda config: "not asked")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    assert not doctor.examine()
    text = capsys.readouterr().out
    wrong = [line.split()[1] for line in text.splitlines() if line.startswith("wrong")]
    assert wrong == ["packages:", "home:", "prefect:"]
    assert "free some, or set SPOTLIGHT_HOME" in text
    assert "start it or unset the variable" in text
    assert "ok    records: 0 runs" in text


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
            r"diffusion_pytorch_model.safetensors: 1 of the [\d,]+ numbers of proj_out.weight", line
        )


def test_brackets_and_libraries_that_do_not_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    def road(config: RunConfig) -> str:
        raise ImportError("libGL.so.1: cannot open shared object file [bold]")

    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "[red]home[/]"))
    monkeypatch.setattr(doctor, "_model_and_scorer", road)
    assert not doctor.examine()
    lines = capsys.readouterr().out.splitlines()
    assert "wrong model and scorer: libGL.so.1: cannot open shared object file [bold]" in lines
    assert any("/[red]home[/], " in line for line in lines)
    assert lines[-1].startswith("ok    prefect"), "the rest is checked"


def test_damaged_files_of_runs_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    def said() -> str:
        return next(line for line in capsys.readouterr().out.splitlines() if " records: " in line)

    monkeypatch.setattr(doctor, "_model_and_scorer", lambda *_: "not asked")
    store = RunStore(Home(tmp_path / "home").ensure())
    write_sample_run(store, "r", iterations=2)
    assert doctor.examine()
    assert said() == "ok    records: 1 runs, all files whole"
    [file] = row_files(store, "r", "samples")
    damage(file)
    assert not doctor.examine()
    assert f"1 files of runs are damaged, the first is {file}" in said()
    description = store.home.run("r") / RUN_FILE
    description.write_bytes(b"not JSON" * 1000)
    assert not doctor.examine()
    assert f"{description} is damaged" in said()
    description.unlink()
    assert not doctor.examine()
    assert f"{store.home.run('r')} has no run.json" in said()
