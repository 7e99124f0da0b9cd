"""`import spotlight`: quick to import, the functions of the command line, frames of what was recorded."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotlight
from flows import start
from storage.config.run_config import RunConfig
from storage.environment import GIVES_VERDICT
from storage.errors import ConfigurationError, RunCancelledError, RunNotFoundError
from storage.home import Home
from storage.record.ledger import read_ledger
from storage.record.run_store import RunStore
from tests.documents import python_of
from tests.sample_run import write_sample_run
from tests.tampering import set_run

HEAVY = {"torch", "ray", "prefect", "streamlit", "diffusers", "mlflow", "pandas", "duckdb", "flows", "tasks"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, RunConfig, str]]:
    """Runs that passed the checks of their settings, with these and their preset; nothing is started."""
    passed: list[tuple[str, RunConfig, str]] = []

    def begin(home: Home, run_id: str, config: RunConfig, preset: str = "", **_: bool) -> dict[str, Any]:
        passed.append((run_id, config, preset))
        return {"run_id": run_id, "score_before": 0.25, "score_after": 0.5, "cost_usd": 1.5}

    monkeypatch.setattr(start, "look_at_inputs", lambda config: None)
    monkeypatch.setattr(start, "post_train_under_server", begin)
    return passed


def test_importing_it_loads_nothing_heavy(tmp_path: Path):
    code = f"import sys, spotlight; print(sorted({HEAVY} & set(sys.modules)), len(spotlight.__all__))"
    # From another folder, as a user's script: the installation finds it.
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split("\n")[0] == f"[] {len(spotlight.__all__)}"


def test_completion_offers_the_public_names_alone_and_each_explains_itself():
    assert dir(spotlight) == sorted(spotlight.__all__)
    for name in spotlight.__all__:
        assert getattr(spotlight, name).__doc__, name


def test_a_run_has_the_settings_of_preset_environment_and_arguments(begun, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPOTLIGHT_SEED", "3")
    monkeypatch.setenv("SPOTLIGHT_ITERATIONS", "9")
    result = spotlight.train(
        preset="smoke",
        settings={
            "iterations": 4,
            "sampling.noise_level": 0.5,
            "runtime": {"history": True, "spot_workers": 1},
            "prompts.train": Path("mine.txt"),
            "adaptation.targets": ["to_q", "to_k"],
        },
        name="my-run",
        cluster="local",
    )
    [(run_id, config, _)] = begun
    assert run_id.startswith("my-run-") and result.run_id == run_id
    assert (result.score_before, result.score_after, result.summary["cost_usd"]) == (0.25, 0.5, 1.5)
    assert (config.name, config.seed, config.iterations) == ("my-run", 3, 4)
    assert config.sampling.noise_level == 0.5 and config.sampling.rollout_steps == 4
    assert config.runtime.history and config.runtime.spot_workers == 1
    assert config.runtime.cluster == "local"
    assert config.prompts.train == str(Path("mine.txt").absolute())
    assert config.adaptation.targets == ("to_q", "to_k")


def test_the_command_line_begins_the_same_run(begun, monkeypatch: pytest.MonkeyPatch):
    from flows.cli import command_line

    spotlight.train("smoke", {"seed": 5, "model.path": 'a "quoted" \\ folder'}, run_id="one")
    monkeypatch.setattr(sys, "argv", [
        "spotlight", "train", "--preset", "smoke", "--set", "seed=5", "--set",
        'model.path=a "quoted" \\ folder', "--run-id", "two",
    ])  # fmt: skip
    with pytest.raises(SystemExit):
        command_line.main()
    assert begun == [("one", begun[0][1], "smoke"), ("two", begun[0][1], "smoke")]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"sampling.noise": 1}, "did you mean sampling.noise_level?"),
        ({"iterations": 0}, r"iterations = 0 \(from settings\): must be at least 1"),
        (
            {"reward.scorer": ""},
            r"reward.scorer: not set[^-]*, settings={\"reward.scorer\": \"my_rewards.py:blue\"}$",
        ),
        ({"iterations": None}, "leave the setting out"),
        ({"sampling": {1: 2}}, r"sampling.1 \(from settings\): no such setting"),
        ({"seed": object()}, "seed = <object .*: give text, a number.*these$"),
        (
            {"reward.scorer": lambda image, prompt: 1.0},
            "these; write it into a file, and give 'FILE.py:NAME'",
        ),
        ({"runtime": {"spot_workers": "many"}}, "runtime.spot_workers = 'many'"),
    ],
)
def test_wrong_settings_are_errors_of_ours(begun, home: Home, settings: dict[str, Any], says: str):
    with pytest.raises(spotlight.SpotlightError, match=says) as refused:
        spotlight.train("smoke", settings)
    assert isinstance(refused.value, ConfigurationError)
    assert begun == [] and home.run_ids() == []


def test_runs_that_cannot_be_resumed_evaluated_exported_or_loaded(begun, home: Home, tmp_path: Path):
    write_sample_run(RunStore(home), "done", iterations=1)
    with pytest.raises(spotlight.SpotlightError, match="is finished after 1 iterations"):
        spotlight.resume("done")
    with pytest.raises(spotlight.SpotlightError, match="no checkpoint yet"):
        spotlight.evaluate("done")
    with pytest.raises(spotlight.SpotlightError, match="no checkpoint yet"):
        spotlight.export("done", tmp_path / "out")
    with pytest.raises(spotlight.SpotlightError, match="exists already"):
        spotlight.train("smoke", run_id="done")
    with pytest.raises(RunNotFoundError, match="did you mean done"):
        spotlight.load_run("donne")
    assert begun == []


def test_a_failed_run_is_resumed_with_its_own_settings(begun, home: Home):
    store = RunStore(home)
    store.create_run("mine", RunConfig(seed=3), {}, 0)
    store.set_status("mine", "failed", "gone")
    assert spotlight.resume("last", cluster="local").run_id == "mine"
    [(_, config, _)] = begun
    assert (config.seed, config.runtime.cluster) == (3, "local")


def test_settings_are_the_resolved_ones_by_name():
    values = spotlight.settings("smoke", {"sampling.noise_level": 0.25})
    assert values["sampling.noise_level"] == 0.25
    assert values["sampling.rollout_steps"] == 4
    assert values["iterations"] == 2
    assert set(values) == set(spotlight.settings())
    assert spotlight.settings(settings=values) == values, "they can be given back"


def test_frames_of_a_run(home: Home):
    store = RunStore(home)
    write_sample_run(store, "explored", iterations=3, exploring=True)
    store.set_summary("explored", {"score_after": 0.5})
    assert [spotlight.load_run(text).run_id for text in ("last", "expl")] == ["explored"] * 2
    run = spotlight.load_run("explored")
    assert (run.status, run.summary) == ("finished", {"score_after": 0.5})
    assert run.settings["name"] == "glyphs"
    assert run.curves["iteration"].tolist() == [1, 2, 3]
    assert {"reward_mean", "loss", "elapsed_s"} <= set(run.curves.columns)
    assert run.scores["iteration"].tolist()[0] == 0
    samples = run.samples
    assert len(samples) == 3 * 256
    seeds = run.seeds
    assert len(seeds) and set(seeds["iteration"]) <= {1, 2, 3}
    columns = ["iteration", "prompt_id", "seed_index"]
    rolled_out = set(samples[columns].itertuples(index=False, name=None))
    kept = {tuple(row) for row in seeds.loc[seeds["kept"], columns].itertuples(index=False, name=None)}
    assert kept and kept <= rolled_out
    with store.reading() as connection:
        bill = read_ledger(connection, "explored").spent()
    assert sum(run.ledger["usd"].tolist()) == pytest.approx(bill.usd)
    assert sum(run.ledger["device_s"].tolist()) == pytest.approx(bill.device_s)
    assert set(run.ledger.columns) == {"phase", "market", "state", "device_s", "usd"}


@pytest.mark.parametrize("verdict", ["yes", "no"])
def test_a_reward_without_a_verdict_has_no_share_of_exact_images(home: Home, verdict: str):
    store = RunStore(home)
    write_sample_run(store, "r", iterations=2)
    set_run(store, "r", environment={GIVES_VERDICT: verdict})
    [row] = spotlight.runs().to_dict("records")
    found = [row["exact_before"], row["exact_now"], *spotlight.load_run("r").scores["exact"]]
    assert [math.isnan(value) for value in found] == [verdict == "no"] * len(found)
    assert row["score_before"] >= 0


def test_a_run_that_goes_on_is_read_anew_and_what_is_not_there_is_empty(home: Home):
    store = RunStore(home)
    write_sample_run(store, "r", iterations=2, status="running")
    run = spotlight.load_run("r")
    assert run.seeds.empty and len(run.curves) == 2
    means = run.samples.groupby("iteration")["score"].agg("mean")
    assert means.tolist() == pytest.approx(run.curves["reward_mean"].tolist())
    store.discard_after("r", 1)
    assert len(run.curves) == 1 and len(run.scores) == 1
    assert f"held-out score {run.scores['score'][0]:.3f}</p>" in run._repr_html_(), "no course of one score"
    assert spotlight.runs()["run_id"].tolist() == ["r"]


def test_the_code_in_the_document_runs(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """With a recorded run in place of a new one; tests/integration/test_python_door.py trains it."""
    import tasks.export

    def record(home: Home, run_id: str, config: RunConfig, preset: str) -> dict[str, Any]:
        assert (config.iterations, config.sampling.noise_level) == (4, 0.5)
        write_sample_run(RunStore(home), run_id, iterations=4)
        return {"run_id": run_id, "score_before": 0.25, "score_after": 0.5}

    figures = {"evaluation_id": "e", "run_id": "r", "iteration": 4, "score": 0.75, "exact": 0.5}
    monkeypatch.setattr(start, "look_at_inputs", lambda config: None)
    monkeypatch.setattr(start, "post_train_under_server", record)
    monkeypatch.setattr(start, "evaluate", lambda *_, **__: figures)
    monkeypatch.setattr(tasks.export, "export_run", lambda home, run_id, out: {"out": str(out)})
    [code] = python_of("docs/reference/python.md")
    exec(code, {})
    printed = capsys.readouterr().out
    assert "0.25 0.5" in printed and "0.75 0.5" in printed and "reward_mean" in printed


def test_no_runs_yet(home: Home):
    assert spotlight.runs().empty
    assert not home.path.exists(), "looking must not make anything"


def test_a_run_whose_process_is_gone_is_interrupted(home: Home):
    RunStore(home).create_run("r", RunConfig(), {}, 2**22 + 1)  # no process has that number
    assert spotlight.load_run("r").status == "interrupted"
    assert RunStore(home).run("r").status == "running", "looking changes nothing"


def test_a_run_cancelled_in_the_ui_is_an_error_and_a_terminated_process_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from flows.process import cancellation, stopping

    def press_cancel(_: str, over: threading.Event) -> None:
        stopping.stop_this_process("cancelled in the Prefect UI")

    monkeypatch.setattr(cancellation, "_watch", press_cancel)
    with (
        pytest.raises(RunCancelledError, match="`spotlight resume r`"),
        stopping.stops_in_order("Stopped after iteration 3."),
        cancellation.cancellable("r", "continue with `spotlight resume r`"),
    ):
        time.sleep(60)
    assert capsys.readouterr().out == "Stopped after iteration 3.\n"
    monkeypatch.setattr(cancellation, "_watch", lambda name, over: None)
    with (
        pytest.raises(SystemExit, match="143"),
        stopping.stops_in_order("Stopped."),
        cancellation.cancellable("r", "continue with `spotlight resume r`"),
    ):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)


def test_numbers_of_numpy_and_paths_are_settings_too(tmp_path: Path):
    preset = tmp_path / "mine.toml"
    preset.write_text("iterations = 3\n")
    given = {
        "seed": np.int64(7), "sampling.noise_level": np.float32(0.3),
        "optimizer.learning_rate": np.float64(1e-5),
        "runtime.history": np.bool_(True), "adaptation.targets": np.array(["to_q", "to_v"]),
        "prompts": {"train": tmp_path / "täglich.txt"}, "iterations": np.array(3),
    }  # fmt: skip
    found = spotlight.settings(preset, given)
    assert {name: found[name] for name in given if name != "prompts"} == {
        "seed": 7, "sampling.noise_level": 0.3, "optimizer.learning_rate": 1e-5, "runtime.history": True,
        "adaptation.targets": ["to_q", "to_v"], "iterations": 3,
    }  # fmt: skip
    assert found["prompts.train"] == str(tmp_path / "täglich.txt")
