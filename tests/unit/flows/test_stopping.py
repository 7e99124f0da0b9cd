"""Signals: the first one ends the work in order, and further ones do not disturb that."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import start
from flows.cli import operating, preparing
from flows.deployed.forms import ReproductionForm
from flows.process import stopping
from flows.process.stopping import Stopped, stops_in_order
from gpu_runtime.models.embedded.folder import WEIGHTS_FOLDER
from storage.config.run_config import RunConfig
from storage.evaluations.reproductions import Reproduction, write_reproduction
from storage.evaluations.separate import EvaluationStore, SeparateEvaluation
from storage.home import Home
from storage.processes import ENDING_SIGNALS
from storage.record.run_store import RunStore
from tests.sample_run import iteration_record

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import sys, time
from flows.process.stopping import stops_in_order
try:
    with stops_in_order("Stopped; nothing is kept."):
        try:
            print("ready", flush=True)
            time.sleep(60)
        finally:
            time.sleep(0.5)
            print("ended in order", flush=True)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("numbers", "code", "said"),
    [
        ((signal.SIGINT, signal.SIGINT), 130, ["interrupted"]),
        ((signal.SIGINT, signal.SIGTERM), 130, ["interrupted"]),
        ((signal.SIGTERM, signal.SIGINT), 143, []),
        ((signal.SIGHUP, signal.SIGHUP, signal.SIGTERM), 129, []),
    ],
)
def test_a_second_signal_does_not_disturb_the_end(
    numbers: tuple[signal.Signals, ...], code: int, said: list[str]
):
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    for number in numbers:
        child.send_signal(number)
        time.sleep(0.1)
    out, error = child.communicate()
    assert out.splitlines() == ["ended in order", "Stopped; nothing is kept.", *said]
    assert (child.returncode, error) == (code, "")


def test_a_terminal_that_closes_does_not_end_what_nohup_started():
    child = subprocess.Popen(
        ["nohup", sys.executable, "-c", SCRIPT], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(timeout=1.0)
    child.send_signal(signal.SIGTERM)
    child.communicate()
    assert child.returncode == 143


def test_earlier_handlers_are_back_once_the_work_has_stopped(capsys: pytest.CaptureFixture[str]):
    before = [signal.getsignal(number) for number in ENDING_SIGNALS]
    with pytest.raises(Stopped, match=r"^stopped by Ctrl-C$"), stops_in_order("Stopped."):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    assert capsys.readouterr().out == "Stopped.\n"
    assert [signal.getsignal(number) for number in ENDING_SIGNALS] == before


def test_an_end_that_hangs_can_be_cut_short(monkeypatch: pytest.MonkeyPatch):
    ended: list[int] = []
    monkeypatch.setattr(stopping, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(stopping.os, "_exit", ended.append)
    with pytest.raises(SystemExit), stops_in_order("Stopped."):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)
    assert ended == [143]


def test_a_signal_waits_while_prefect_does_something_of_its_own():
    """Interrupted there, Prefect fails itself: it has no state yet of the task that it is about to begin."""
    done: list[int] = []
    scope: dict[str, object] = {"__name__": "prefect.task_engine", "time": time, "done": done}
    exec("def begin(function):\n    time.sleep(0.3)\n    done.append(1)\n    function()", scope)
    ours: dict[str, object] = {"__name__": "tasks.iteration.phases", "time": time}
    exec("def task():\n    time.sleep(60)", ours)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), stops_in_order("Stopped."):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        scope["begin"](ours["task"])  # pyright: ignore[reportCallIssue]
    assert done == [1], "what Prefect did was not interrupted"
    assert time.monotonic() - began < 50, "its task was"


def test_a_signal_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stopping, "_DEFERRED_S", 0.2)
    scope: dict[str, object] = {"__name__": "prefect.client", "time": time}
    exec("def ask():\n    time.sleep(60)", scope)
    with pytest.raises(KeyboardInterrupt), stops_in_order("Stopped."):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        scope["ask"]()  # pyright: ignore[reportCallIssue]


EARLIER = {
    "new": "Stopped before the run began; nothing is kept.",
    "resumed": "Stopped before the run was resumed. Continue: spotlight resume r",
}


@pytest.mark.parametrize("begins", EARLIER)
@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("start", ""),
        ("work", "Stopped after iteration 1 of 9. Continue: spotlight resume r"),
        ("end", "Run r had finished."),
    ],
)
def test_the_words_are_those_of_the_moment_at_which_the_signal_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    begins: str, at: str, said: str,
):  # fmt: skip
    def do_run(home: Home, run_id: str, config: RunConfig, *_: object, **__: object) -> None:
        if at != "start":
            if begins == "new":
                store.create_run(run_id, config, {}, os.getpid())
            else:
                store.resume_run(run_id, os.getpid())
            store.commit_iteration(iteration_record(run_id, 1, 100.0, 8))
        if at == "end":
            store.set_status(run_id, "finished")
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(start, "look_at_inputs", lambda config: None)
    monkeypatch.setattr(start, "post_train_under_server", do_run)
    store = RunStore(Home(tmp_path).ensure())
    if begins == "resumed":
        with subprocess.Popen(["true"]) as ended:
            store.create_run("r", RunConfig(iterations=9), {}, ended.pid)
    with pytest.raises(KeyboardInterrupt):
        start.train("smoke", ["iterations=9"], run_id="r") if begins == "new" else start.resume("r")
    assert capsys.readouterr().out.splitlines()[-1] == (said or EARLIER[begins])


@pytest.mark.parametrize("ended", [False, True])
def test_an_evaluation_that_had_finished_is_not_called_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended: bool
):
    made: list[str] = []

    def evaluate(
        config: RunConfig, run_id: None, images: None, earlier: None, evaluation_id: str, preset: str
    ) -> None:
        made.append(evaluation_id)
        if ended:
            settings = config.model_dump(mode="json")
            facts = SeparateEvaluation(evaluation_id, None, 0, 0, 1.0, 2.0, 0.5, 0.5, 0, None, settings, {})
            EvaluationStore(Home(tmp_path)).commit(facts, [])
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(start, "look_at_inputs", lambda config: None)
    monkeypatch.setattr("flows.server.prefect_server.prefect_server", lambda home, check: nullcontext())
    monkeypatch.setattr("flows.process.cancellation.cancellable", lambda *_: nullcontext())
    flow = SimpleNamespace(with_options=lambda flow_run_name: evaluate)
    monkeypatch.setattr("flows.evaluate.evaluate_model", flow)
    broken = Home(tmp_path).run("other")  # whatever is damaged elsewhere, this goes on
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{")
    with pytest.raises(KeyboardInterrupt):
        start.evaluate(preset="smoke")
    told = f"Evaluation {made[0]} had finished. Show it: spotlight evaluations {made[0]}"
    said = told if ended else "Stopped; nothing of the evaluation is kept."
    assert capsys.readouterr().out.splitlines()[-1] == said


@pytest.mark.parametrize(
    ("saved", "said"),
    [((), "no model was saved."), (("a", "a-sparse"), "saved in {folder}: a, a-sparse.")],
)
def test_models_that_were_saved_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    saved: tuple[str, ...], said: str,
):  # fmt: skip
    def pretrain(model: str, out: str, seed: int) -> None:
        for name in saved:
            shutil.copytree(WEIGHTS_FOLDER / "shapes", Path(out) / name)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("flows.server.prefect_server.prefect_server", lambda home: nullcontext())
    monkeypatch.setattr("flows.process.cancellation.cancellable", lambda *_: nullcontext())
    flow = SimpleNamespace(with_options=lambda flow_run_name: pretrain)
    monkeypatch.setattr("flows.pretrain.pretrain", flow)
    folder = tmp_path / "models"
    with pytest.raises(KeyboardInterrupt):
        preparing.pretrain("shapes", str(folder), 0)
    assert capsys.readouterr().out.splitlines()[-1] == f"Stopped; {said.format(folder=folder)}"


@pytest.mark.parametrize("compared", [False, True])
def test_a_comparison_that_had_ended_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], compared: bool
):
    def do_again(form: ReproductionForm, again: str) -> None:
        if compared:
            done = Reproduction(again, "smoke", "train", "was", again, 1.0, 2.0, "identical", "to the bit")
            write_reproduction(Home(tmp_path), done)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(operating, "_check_reference", lambda *_: None)
    monkeypatch.setattr("flows.server.prefect_server.prefect_server", lambda home, check: nullcontext())
    monkeypatch.setattr("flows.process.cancellation.cancellable", lambda *_: nullcontext())
    monkeypatch.setattr(
        "flows.reproduce.reproduce", SimpleNamespace(with_options=lambda flow_run_name: do_again)
    )
    with pytest.raises(KeyboardInterrupt):
        operating.reproduce(preset="smoke")
    said = "after the comparison: identical: to the bit" if compared else "; nothing was compared."
    assert capsys.readouterr().out.splitlines()[-1].removeprefix("Stopped").strip() == said
