"""The command line: help with an example, refusals before anything starts, listings."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from PIL import Image
from typer.main import get_command

import flows.server.prefect_server
import tasks.checks.early_check
from flows import start
from flows.cli import command_line
from flows.configuration import given_configuration, look_at_model
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.evaluations.reproductions import Reproduction, write_reproduction
from storage.evaluations.separate import EvaluationStore, SeparateEvaluation
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from storage.record.records import JudgedImage
from storage.record.results import run_result
from storage.record.run_folder import RUN_FILE
from storage.record.run_store import RunRow, RunStore
from tests.sample_run import write_sample_run
from tests.tampering import damage, row_files, set_run

COMMANDS = (
    "train", "resume", "evaluate", "evaluations", "export", "pretrain", "ui", "runs", "presets", "doctor",
    "chaos", "up", "down", "report", "reproduce", "prompts", "settings", "what-if", "profile",
    "judge", "metrics", "score", "stop", "logs", "compare-strategies",
)  # fmt: skip

SET = {
    "train": "Override one setting; repeatable.",
    "reproduce": "Change a setting on purpose; the result names it.",
    "score": "An option, such as reward.options.scale=sigmoid.",
}
"""What `--set` does for a command."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home of the test's own; whatever would start a server, and then Ray, is an error."""

    def refuse(*_: object) -> None:
        raise AssertionError("a server was to be started")

    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(flows.server.prefect_server, "prefect_server", refuse)
    return Home(tmp_path / "home")


class Shell:
    """Runs a command as the entry point does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error with its line breaks as spaces."""
        self._monkeypatch.setattr(sys, "argv", ["spotlight", *arguments])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        code = ended.value.code
        answer = self._capsys.readouterr()
        return int(code or 0), answer.out, " ".join(answer.err.split())

    def refusal(self, *arguments: str) -> str:
        """The message of a refused command, which printed nothing else."""
        code, out, message = self(*arguments)
        assert code == 2
        assert out == ""
        assert "Traceback" not in message
        return message


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


def test_the_commands_are_these_and_help_names_them(shell: Shell):
    assert set(getattr(get_command(command_line.app), "commands", {})) == set(COMMANDS)
    _, out, message = shell()
    assert all(f" {name} " in out + message for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(shell: Shell, command: str):
    code, out, _ = shell(command, "--help")
    assert code == 0
    assert f"Example: spotlight {command}" in out and SET.get(command, "") in out
    assert shell(command, "-h")[:2] == (0, out)


def test_a_cuda_device_that_is_not_there_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")

    def check_only(_: Home, meanwhile: Callable[[], object]) -> None:
        config = given_configuration(None, ["model.device=cuda"])
        look_at_model(config, here=False)

    monkeypatch.setattr(flows.server.prefect_server, "prefect_server", check_only)
    monkeypatch.setattr(tasks.checks.early_check, "start_early", lambda reward, evaluation: None)
    with pytest.raises(ConfigurationError, match="no CUDA device is visible"):
        start.train(settings=["model.device=cuda"])
    assert RunStore(home).runs() == [] and not home.database.exists()


def test_a_preset_whose_reference_was_removed(shell: Shell, home: Home):
    was = Reproduction("was", "smoke", "train", "was", "was", 1.0, 2.0, "recorded", "")
    write_reproduction(home.ensure(), was)
    said = shell.refusal("reproduce", "--preset", "smoke")
    assert "run 'was', the reference of preset 'smoke', was removed" in said
    assert "spotlight reproduce --preset smoke --renew" in said


def test_runs_that_cannot_be_resumed(shell: Shell, home: Home):
    assert "there are none yet" in shell.refusal("resume", "glyphs-1")
    assert home.run_ids() == [] and not home.database.exists()
    store = RunStore(home)
    store.create_run("glyphs-going-on", RunConfig(), {}, os.getpid())
    message = shell.refusal("resume", "glyphs-going-on")
    assert f"is running in process {os.getpid()}" in message
    assert store.run("glyphs-going-on").status == "running"


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, RunConfig]]:
    """Runs that passed all checks, with their configuration; nothing is started."""
    passed: list[tuple[str, RunConfig]] = []

    def begin(
        home: Home, run_id: str, config: RunConfig, preset: str = "", taken: RunRow | None = None, **_: bool
    ) -> dict[str, str]:
        passed.append((run_id, config))
        if taken is not None:
            RunStore(home).take_over(taken)
        return {"run_id": run_id}

    monkeypatch.setattr(start, "look_at_inputs", lambda config: None)
    monkeypatch.setattr(start, "post_train_under_server", begin)
    return passed


def test_a_run_of_a_machine_that_was_renamed(
    shell: Shell, home: Home, begun: list[tuple[str, RunConfig]], monkeypatch: pytest.MonkeyPatch
):
    store = RunStore(home)
    store.create_run("far", RunConfig(), {}, 2**22 + 1)
    set_run(store, "far", host="old-name")
    message = shell.refusal("resume", "far")
    assert "on old-name" in message
    assert "`spotlight resume far --take-over`" in message
    assert begun == []
    assert shell("resume", "far", "--take-over")[0] == 0
    assert begun == [("far", RunConfig())]
    assert store.run("far").status == "interrupted"
    store.resume_run("far", os.getpid())
    assert "on this machine" in shell.refusal("resume", "far", "--take-over")
    assert store.run("far").status == "running"
    set_run(store, "far", host="old-name", status="running")
    monkeypatch.setattr(start, "look_at_inputs", lambda config: set_run(store, "far", host="third"))
    with pytest.raises(ConfigurationError, match="was taken over meanwhile"):
        start.resume("far", take_over=True)
    assert (store.run("far").host, store.run("far").status) == ("third", "running")


def failed(home: Home, config: RunConfig, facts: Mapping[str, str] | None = None) -> RunStore:
    """A home with the run `mine`, which failed."""
    store = RunStore(home)
    store.create_run("mine", config, facts or {}, os.getpid())
    store.set_status("mine", "failed", "gone")
    return store


@pytest.mark.parametrize(
    ("stored", "options", "cluster"),
    [
        ({}, ("--cluster", "local"), ("local", "")),
        ({"cluster": "10.0.0.1:6379"}, ("--cluster", "local"), ("local", "")),
        ({"cluster": "10.0.0.1:6379"}, (), ("10.0.0.1:6379", "10.0.0.1:6379")),
        ({"cluster": "local"}, ("--ray-address", "10.0.0.1:6379"), ("10.0.0.1:6379", "10.0.0.1:6379")),
        ({}, ("--cluster", "ray", "--ray-address", "auto"), ("auto", "auto")),
        ({"cluster": "local"}, ("--cluster", "ray"), ("ray", "")),
        ({"cluster": "local"}, (), ("local", "")),
    ],
)
def test_resuming_with_and_without_ray(
    shell: Shell, home: Home, begun: list[tuple[str, RunConfig]], stored, options, cluster
):
    config = RunConfig.model_validate({"seed": 3, "runtime": stored})
    store = failed(home, config)
    shell("resume", "mine", *options)
    [(_, resumed)] = begun
    assert (resumed.runtime.cluster, resumed.runtime.ray_address) == cluster
    assert resumed.computes_like(config) and store.run("mine").config == config


def test_a_judgement_alone_is_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
):
    (tmp_path / "mine.py").write_text(
        "import ctypes, os, subprocess\nprint('imported')\n\n\n"
        "def r(image, prompt):\n    print('saw', prompt)\n    ctypes.CDLL(None).puts(b'library')\n"
        "    os.write(1, b'descriptor')\n    subprocess.run(['echo', 'child'])\n    return 0.5\n"
    )
    Image.new("RGB", (8, 8)).save(tmp_path / "image.png")
    shell = Shell(monkeypatch, capfd)
    code, out, error = shell("score", f"{tmp_path}/mine.py:r", f"{tmp_path}/image.png", "a cat")
    assert (code, json.loads(out)["value"]) == (0, 0.5)
    for printed in ("imported", "saw a cat", "library", "descriptor", "child"):
        assert printed in error


def test_resuming_with_other_prompts(shell: Shell, home: Home, begun: list[tuple[str, RunConfig]]):
    failed(home, RunConfig(), {"digest prompts.train": "0" * 64})
    assert "prompts.train = 'builtin:glyphs-train'" in shell.refusal("resume", "mine")
    assert begun == []


def test_paths_hold_from_any_folder(
    shell: Shell, begun: list[tuple[str, RunConfig]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    shell("train", "--set", "prompts.train=a/../mine.txt", "--set", "model.path=~/model")
    [(_, config)] = begun
    assert config.prompts.train == str(tmp_path / "mine.txt")
    assert config.model.path == str(tmp_path / "me" / "model")
    assert config.prompts.evaluate == "builtin:glyphs-evaluate"
    shell("train", "--preset", "shapes")
    assert begun[-1][1].model.path == "embedded:shapes"


def test_runs_of_another_version_are_listed(shell: Shell, home: Home):
    store = RunStore(home)
    write_sample_run(store, "of-old", iterations=1)
    write_sample_run(store, "of-now", iterations=1)
    set_run(store, "of-old", config={"gone": 1})
    code, table, _ = shell("runs")
    assert code == 0
    assert "1/40" in next(line for line in table.splitlines() if "of-now" in line)
    assert "1/?" in next(line for line in table.splitlines() if "of-old" in line)
    assert len(shell("runs", "--json")[1].splitlines()) == 2


def test_evaluations_that_cannot_be(shell: Shell, home: Home):
    write_sample_run(RunStore(home), "mine", iterations=1)
    assert "run 'mine' has no checkpoint yet" in shell.refusal("evaluate", "mine")
    CheckpointStore(home.run("mine")).save(1, {}, {})
    with pytest.raises(AssertionError, match="a server was to be started"):
        shell("evaluate", "mine")


def test_evaluations_are_listed_and_compared(shell: Shell, home: Home):
    assert "no evaluations yet" in shell("evaluations")[1]
    config = RunConfig().model_dump(mode="json")
    for key, run_id, score in (("e-1", None, 0.25), ("e-2", "mine", 0.5)):
        row = SeparateEvaluation(key, run_id, 0, 0, 1e9, 1e9, score, 0.0, 1, None, config, {})
        EvaluationStore(home).commit(row, [JudgedImage(0, 0, "a", "", score, False, "", None)])
    code, table, _ = shell("evaluations")
    assert code == 0
    assert "untouched model" in next(line for line in table.splitlines() if "e-1" in line)
    found = [json.loads(line)["score"] for line in shell("evaluations", "--json")[1].splitlines()]
    assert found == [0.5, 0.25]
    _, out, _ = shell("evaluations", "e-1", "mine")
    assert json.loads(out.splitlines()[-1])["score"] == 0.25
    assert "+0.250" in out
    write_sample_run(RunStore(home), "mine", iterations=1)
    for name in ("last", "mi"):
        assert shell("evaluations", "e-1", name)[1] == out
    assert "no evaluation 'e-3'" in shell.refusal("evaluations", "e-1", "e-3")
    row = SeparateEvaluation("e-4", None, 0, 0, 1e9, 1e9, 0.5, 0.0, 3, None, config, {})
    images = [JudgedImage(0, seed, "a", "", seed / 2, False, "", None) for seed in range(3)]
    EvaluationStore(home).commit(row, images)
    table = " ".join(shell("evaluations", "mine", "e-4")[1].split())
    assert "e-4 minus e-2, over the images that both judged, 1 (of 1 and 3)" in table
    assert "-0.500" in table and "better" not in table


def test_no_runs_yet(shell: Shell, home: Home):
    code, out, _ = shell("runs")
    assert code == 0
    assert "no runs yet; start one with `spotlight train --preset glyphs`" in out
    assert shell("runs", "--json")[1] == ""
    assert home.run_ids() == [] and not home.database.exists(), "looking must not make anything"


def test_runs_as_a_table_and_as_json(shell: Shell, home: Home):
    store = RunStore(home)
    write_sample_run(store, "older", iterations=2)
    store.set_summary("older", {"score_before": 0.25, "score_after": 0.5, "cost_usd": 1.234})
    write_sample_run(store, "newer", iterations=1, status="running")
    code, table, _ = shell("runs")
    assert code == 0
    assert table.index("newer") < table.index("older")
    (line,) = [line for line in table.splitlines() if "older" in line]
    usd = run_result(store, "older")["cost_usd"]
    run_id, status, started, took, *rest = [cell.strip() for cell in line.strip("│┃ ").split("│")]
    assert (run_id, status, rest) == (
        "older", "finished", ["-", "ocr", "2/40", "0.250", "0.500", f"${usd:.2f}"],
    )  # fmt: skip
    row = store.run("older")
    assert started == time.strftime("%Y-%m-%d %H:%M", time.localtime(row.created_at))
    assert row.ended_at is not None and took == str(timedelta(seconds=round(row.ended_at - row.created_at)))
    newer, older = (json.loads(line) for line in shell("runs", "--json")[1].splitlines())
    assert (newer["run_id"], newer["status"], newer["iterations"]) == ("newer", "running", 1)
    assert older["score_after"] == 0.5
    assert older["error"] is None


def test_a_cancelled_run_shows_what_it_cost_and_scored(shell: Shell, home: Home):
    store = RunStore(home)
    write_sample_run(store, "r", iterations=10, status="running")
    store.set_status("r", "cancelled")
    [line] = [line for line in shell("runs")[1].splitlines() if " r " in line]
    usd = run_result(store, "r")["cost_usd"]
    scores = [float(cell) for cell in re.findall(r"0\.\d{3}", line)]
    assert "cancelled" in line and f"${usd:.2f}" in line and usd > 0
    [facts] = [json.loads(line) for line in shell("runs", "--json")[1].splitlines()]
    assert facts["cost_usd"] == pytest.approx(usd)
    assert [facts["score_before"], facts["score_after"]] == pytest.approx(scores, abs=5e-4)


def test_archived_runs_and_folders_without_a_description_are_left_out_and_named(shell: Shell, home: Home):
    store = RunStore(home)
    for run_id in ("kept", "put-away", "bare"):
        write_sample_run(store, run_id, iterations=1)
    RunStore(home).change_notes("put-away", archived=True)
    (home.run("bare") / RUN_FILE).unlink()
    code, table, said = shell("runs")
    assert (code, "kept" in table, "put-away" in table, "bare" in table) == (0, True, False, False)
    assert f"{home.run('bare')} has no run.json" in said
    assert "1 archived not shown; `spotlight runs --archived` lists all" in said
    assert "put-away" in shell("runs", "--archived")[1]
    assert len(shell("runs", "--json")[1].splitlines()) == 1


def test_presets_are_listed_with_what_they_are_for(shell: Shell):
    code, out, _ = shell("presets")
    assert code == 0
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert set(lines) >= {"glyphs", "glyphs-sparse", "shapes", "shapes-sparse", "smoke"}
    assert all(summary.strip() for summary in lines.values())


def test_damaged_rows_are_moved_aside_by_a_resume(
    shell: Shell, home: Home, begun: list[tuple[str, RunConfig]]
):
    store = RunStore(home)
    write_sample_run(store, "r", iterations=2, status="running")
    store.set_status("r", "failed", "the disk is full")
    [file, _] = row_files(store, "r", "samples")
    damage(file)
    code, said, _ = shell("resume", "r")
    assert code == 0 and [run_id for run_id, _ in begun] == ["r"]
    assert f"warning: {file} is damaged and was renamed" in said
    assert store.folder("r").damaged() == []
    assert store.folder("r").events()[-1]["kind"] == "damaged"
