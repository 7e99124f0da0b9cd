"""Judges in environments of their own: all that are shipped answer, and none outlives or misleads a run."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import spotlight
from benchmarks.commands import sets
from flows.judges import judge_at, judges_beside
from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.options import RemoteOptions
from gpu_runtime.rewards.scorers.remote import RemoteScorer
from gpu_runtime.scheduling.scores import Score
from storage.config.loading import load_config
from storage.errors import ConfigurationError, ServerError
from storage.prompts.files import PromptRecord
from storage.prompts.sources import as_data_uri
from tasks.checks.judges import judge_command, started_judges
from tests.running_up import free_port

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "judges"
GREY = np.full((8, 8, 3), 51, np.uint8)  # a fifth of white
TEXT = PromptRecord(0, "a red sun")
EDIT = PromptRecord(0, "make it red", source=as_data_uri(GREY))
ROW = PromptRecord(0, "two cows", {"vqa_list": [["How many cows are in the image?", "two"]]})


@contextmanager
def started(command: Sequence[str], **environment: str) -> Iterator[str]:
    """The address of a judge that was started by hand."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment)
    assert child.stdout is not None
    try:
        said = child.stdout.readline()
        yield said.split()[-1]
    finally:
        child.kill()
        child.communicate()


def asked(url: str, image: np.ndarray, prompt: PromptRecord) -> Score:
    remote = RemoteScorer(RemoteOptions(url=url, attempts=1))
    return score_each(remote, [image], [prompt])[0]


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"judges_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


GIVEN = {"edit_reward": EDIT, "geneval2": ROW}
REFUSED = {
    "edit_reward": (GREY, TEXT, "0 source images; this judge sees edits of one"),
    "geneval2": (GREY, TEXT, "no `vqa_list` in the prompt's row"),
    "video_align": (GREY, TEXT, "one frame, and this judge sees clips"),
}


@pytest.mark.parametrize("name", sorted({path.stem for path in FOLDER.glob("*.py")} - {"serving"}))
def test_each_judge_pins_its_dependencies_states_its_facts_and_answers_as_a_stand_in(name: str, monkeypatch):
    found = re.match(r"# /// script\n((?:#[^\n]*\n)+?)# ///\n", (FOLDER / f"{name}.py").read_text())
    assert found is not None
    block = tomllib.loads("".join(line[2:] + "\n" for line in found[1].splitlines()))
    assert block["requires-python"]
    assert all(re.fullmatch(r"[a-z0-9-]+==[\d.]+", each) for each in block["dependencies"])
    facts = module(name, monkeypatch).FACTS
    assert facts.licence and facts.weights and facts.memory_gb > 0 and facts.better == "higher"
    lowest, highest = facts.scale
    assert lowest < highest
    clip = np.stack([GREY] * 3)
    with started([sys.executable, str(FOLDER / f"{name}.py"), "--stub", "--port", "0"]) as url:
        score = asked(url, clip if name == "video_align" else GREY, GIVEN.get(name, TEXT))
        other, prompt, why = REFUSED.get(name, (clip, TEXT, "a clip of 3 frames"))
        refused = asked(url, other, prompt)
    assert (score.value, score.exact, score.error) == (pytest.approx(0.2), False, None)
    assert score.detail.startswith(f"stand-in of {facts.name}: {lowest + 0.2 * (highest - lowest):.4g}")
    assert refused.error is not None and why in refused.error


def test_a_judge_s_file_does_not_hide_the_package_of_its_name(tmp_path: Path):
    (tmp_path / "hpsv3.py").write_text(
        "import torch\n"
        "class HPSv3RewardInferencer:\n"
        "    def __init__(self, device): assert device == 'cuda'\n"
        "    def reward(self, image_paths, prompts):\n"
        "        assert image_paths[0].size == (8, 8) and prompts == ['a red sun']\n"
        "        return torch.tensor([[7.0, 0.5]])\n"
    )
    command = [sys.executable, str(FOLDER / "hpsv3.py"), "--port", "0"]
    with started(command, PYTHONPATH=str(tmp_path)) as url:
        score = asked(url, GREY, TEXT)
    assert (score.value, score.error) == (pytest.approx(27 / 40), None)
    assert score.detail == "hpsv3: 7 on [-20, 20], higher is better"


def test_an_answer_of_unified_reward_is_read_or_refused(monkeypatch):
    read = module("unified_reward", monkeypatch).read
    answer = "Alignment Score (1-5): 2.5\nCoherence Score (1-5): 3\nStyle Score (1-5): 5.0"
    assert [read(answer, part) for part in ("mean", "alignment", "style")] == [3.5, 2.5, 5.0]
    with pytest.raises(ValueError, match="no score of coherence, style"):
        read("Alignment Score (1-5): 2.5 Coherence: high", "alignment")


def test_geneval2_s_answers_and_means(monkeypatch):
    judge = module("geneval2", monkeypatch)
    assert judge.forms("three") == {"three", "Three", "3", " three", " Three", " 3"}
    assert judge.forms("Yes") == {"Yes", "yes", " Yes", " yes"}
    assert judge.mean([0.25, 1.0], "gm") == pytest.approx(0.5)
    assert judge.mean([0.25, 1.0], "am") == pytest.approx(0.625)


def test_the_command_of_a_judge(tmp_path: Path, monkeypatch):
    file, url = tmp_path / "own judge.py", "http://127.0.0.1:8190/score"
    file.touch()
    (tmp_path / "pipx").touch(0o755)
    served = ["--host", "127.0.0.1", "--port", "8190"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert judge_command(f"'{file}' --part am", url) == [
        str(tmp_path / "pipx"), "run", str(file), "--part", "am", *served,
    ]  # fmt: skip
    (tmp_path / "uv").touch(0o755)
    assert judge_command(f"'{file}'", url)[:3] == [str(tmp_path / "uv"), "run", "--script"]
    assert judge_command(f"'{file}' --stub", url) == [sys.executable, str(file), "--stub", *served]
    assert judge_command(f"{sys.executable} '{file}'", url) == [sys.executable, str(file), *served]


def test_a_judge_after_its_python_is_found_from_any_folder(tmp_path: Path, monkeypatch):
    (tmp_path / "my judge.py").touch()
    monkeypatch.chdir(tmp_path)
    given = "env A=1 python 'my judge.py' --part am no/such.py"
    options = RemoteOptions(url="http://127.0.0.1:8190/score", judge=given)
    assert shlex.split(options.judge) == [
        "env", "A=1", "python", str(tmp_path / "my judge.py"), "--part", "am", "no/such.py",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("judge", "url", "says"),
    [
        ("no/such.py", "http://127.0.0.1:8190/score", "there is no file 'no/such.py'"),
        ("no-such-program x", "http://127.0.0.1:8190/score", "there is no program 'no-such-program'"),
        (str(FOLDER / "hpsv3.py"), "http://127.0.0.1/score", "names no port"),
        (str(FOLDER / "hpsv3.py"), "http://127.0.0.1:8190/score", "neither uv nor pipx is installed"),
        (str(FOLDER / "hpsv3.py"), "http://127.0.0.1:65536/score", "names no port .* from 1 to 65535"),
        ("'", "http://127.0.0.1:8190/score", "is not a command"),
        (" ", "http://127.0.0.1:8190/score", "is blank; name a judge"),
    ],
)
def test_a_judge_that_cannot_be_started_is_refused(judge: str, url: str, says: str, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises((ConfigurationError, ValueError), match=says):
        judge_command(RemoteOptions(url=url, judge=judge).judge, url)


def settings_of(judge: str, port: int) -> list[str]:
    return [
        "runtime.cluster=local", "reward.scorer=remote", f"reward.options.judge={judge}",
        f"reward.options.url=http://127.0.0.1:{port}/score", "reward.options.attempts=8",
        "reward.options.timeout_s=20", "reward.options.images_a_request=4",
    ]  # fmt: skip


def test_a_judge_that_ends_while_it_loads_is_told_with_its_last_words(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    (tmp_path / "judge.py").write_text("raise SystemExit('no such weights')")
    judge = f"{sys.executable} {tmp_path / 'judge.py'}"
    config = load_config("smoke", settings_of(judge, free_port()), {})
    said = r"does not start: the judge ended(.|\n)*no such weights"
    with pytest.raises(ConfigurationError, match=said), judges_beside(config):
        pass


def test_judges_at_one_port_of_two_hosts_have_a_log_each(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    port, hosts = free_port(), ("127.0.0.1", "127.0.0.2")
    for host in hosts:
        command = [sys.executable, "-c", f"raise SystemExit({host!r})"]
        with pytest.raises(ConfigurationError), judge_at(f"http://{host}:{port}/score", command, 60.0):
            pass
    said = {path.name: path.read_text().split() for path in (tmp_path / "logs").glob("judge-*")}
    assert said == {f"judge-{host}-{port}.log": [host] for host in hosts}


def test_a_port_that_is_taken_is_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = load_config("smoke", settings_of(f"{FOLDER / 'hpsv3.py'} --stub", port), {})
        with pytest.raises(ServerError, match=r"choose another reward\.options\.url"), judges_beside(config):
            pass


def test_a_judge_whose_runner_alone_is_killed_is_started_again_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch, runner: str
):
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    config = load_config("smoke", settings_of(runner, port := free_port()), {})
    earlier = set(psutil.Process().children(recursive=True))  # of other tests of this process
    with judges_beside(config):
        family = set(psutil.Process().children(recursive=True)) - earlier
        (shell,) = (one for one in family if one.name() == "sh")
        (judge,) = shell.children()
        shell.kill()
        judge.wait(60)
        again = RemoteScorer(RemoteOptions(url=f"http://127.0.0.1:{port}/score", attempts=8, backoff_s=1))
        assert score_each(again, [GREY], [TEXT])[0].value == pytest.approx(0.2)
        family |= set(psutil.Process().children(recursive=True)) - earlier
    assert psutil.wait_procs(family, timeout=60)[1] == []


def test_two_judges_at_one_address_are_refused_and_one_of_both_is_started_once():
    one, other = (f"{FOLDER / name}.py --stub" for name in ("hpsv3", "image_reward"))
    second = [
        f"evaluation.options.{each.removeprefix('reward.options.')}" for each in settings_of(one, 8190)[3:]
    ]
    both = ["evaluation.judge=remote", *second, "evaluation.options.attempts=2"]
    same = load_config("smoke", [*settings_of(one, 8190), *both, f"evaluation.options.judge={one}"], {})
    assert len(started_judges(same.reward, same.evaluation)) == 1
    two = load_config("smoke", [*settings_of(one, 8190), *both, f"evaluation.options.judge={other}"], {})
    with pytest.raises(ConfigurationError, match=r"set evaluation\.options\.url to another port"):
        started_judges(two.reward, two.evaluation)


def test_samples_that_nobody_waits_for_any_more_are_not_judged(tmp_path: Path):
    (calls := tmp_path / "calls").mkdir()
    (tmp_path / "slow.py").write_text(
        "import sys, time\n"
        f"sys.path.insert(0, {str(FOLDER)!r})\n"
        "from serving import Facts, serve\n"
        "def load(part):\n"
        "    def score(sample):\n"
        f"        open({str(calls)!r} + '/' + sample.prompt, 'w').close()\n"
        "        time.sleep(0.2)\n"
        "        return 0.5\n"
        "    return score\n"
        "serve(Facts('slow', 'none', 'none', 0, (0.0, 1.0)), load)\n"
    )
    with started([sys.executable, str(tmp_path / "slow.py"), "--port", "0"]) as url:
        hasty = RemoteScorer(RemoteOptions(url=url, attempts=1, timeout_s=0.5, images_a_request=8))
        left = score_each(hasty, [GREY] * 8, [PromptRecord(number, f"left {number}") for number in range(8)])
        assert all("no whole answer within" in (score.error or "") for score in left)
        assert asked(url, GREY, PromptRecord(9, "stays")).value == 0.5
        time.sleep(8 * 0.2 + 0.5)  # all would be judged by now
        judged = {path.name for path in calls.iterdir()}
    assert "stays" in judged and len(judged) < 8


def command(home: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "flows.cli.command_line", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT} | options
    return subprocess.Popen(words, env=os.environ | {"SPOTLIGHT_HOME": str(home)}, **pipes)


def killed_with_its_family(child: subprocess.Popen[str]) -> list[list[str]]:
    """Kill a command by SIGKILL; return what is left of its family."""
    family = psutil.Process(child.pid).children(recursive=True)
    assert any("hpsv3.py" in " ".join(each.cmdline()) for each in family)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    _, alive = psutil.wait_procs(family, timeout=60)
    return [each.cmdline() for each in alive]


@pytest.fixture
def runner(tmp_path: Path) -> str:
    """A command that starts a judge as its child, as `uv` does."""
    script = tmp_path / "runner.sh"
    script.write_text('"$@"\nexit $?\n')
    return f"sh {script} {sys.executable} {FOLDER / 'hpsv3.py'} --stub"


def test_the_command_judge_prints_how_it_is_asked_and_leaves_nothing_behind(tmp_path: Path, runner: str):
    port = free_port()
    child = command(tmp_path, "judge", "--port", str(port), "--", *runner.split())
    assert child.stdout is not None
    said = ""
    while "--set" not in said:
        said += (line := child.stdout.readline())
        assert line, said
    url = f"http://127.0.0.1:{port}/score"
    assert said.endswith(f"    --set reward.scorer=remote --set reward.options.url={url}\n")
    assert asked(url, GREY, TEXT).value == pytest.approx(0.2)
    assert killed_with_its_family(child) == []


@pytest.mark.slow
def test_doctor_shows_what_the_judge_of_a_run_says(tmp_path: Path):
    settings = settings_of(f"{FOLDER / 'hpsv3.py'} --stub", port := free_port())
    child = command(tmp_path, "doctor", "--preset", "smoke", *sets(settings))
    output, _ = child.communicate(timeout=200)
    said = " ".join(output.split())
    assert child.returncode == 0, output
    assert f"judge: remote at http://127.0.0.1:{port}/score gives a test picture of " in said
    assert "(stand-in of hpsv3: " in said and "on [-20, 20], higher is better)" in said
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()


@pytest.mark.slow
def test_a_judge_that_dies_hangs_and_errs_costs_a_run_one_sample_each_and_never_a_0(
    tmp_path: Path, monkeypatch
):
    (calls := tmp_path / "calls").mkdir()
    judge = f"{sys.executable} {ROOT / 'tests' / 'faulty_judge.py'} {calls} --limit 2"
    settings = [*settings_of(judge, free_port()), "reward.options.backoff_s=1", "tracking.to=[]"]
    child = command(tmp_path / "home", "train", "--preset", "smoke", "--run-id", "judged", *sets(settings))
    said, _ = child.communicate(timeout=280)
    assert child.returncode == 0, said
    summary = json.loads(said.splitlines()[-1])
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    samples: Any = spotlight.load_run("judged").samples
    failed, judged = samples[samples["error"].notna()], samples[samples["error"].isna()]
    scale = "is not on its scale [10, 20]"
    assert sorted(failed["error"]) == [
        "the judge gave no score (faulty: RuntimeError: no such picture)",
        f"the judge's score 20.5 {scale}",
        f"the judge's score nan {scale}",
    ]
    groups = samples.merge(failed[["iteration", "prompt_id"]], on=["iteration", "prompt_id"])
    assert groups["advantage"].isna().all() and len(judged) == 29  # nothing is learned from their groups
    assert set(judged["score"].round(6)) <= {0.5, 0.4, 0.3, 0.2, 0.1}
    log = next((tmp_path / "home" / "logs").glob("judge-*.log")).read_text()
    assert re.findall(r"ended with code (\d+)", log) == ["9", "70"]
    assert summary["scorer_errors"] == 3


@pytest.mark.parametrize("scale", [("1", "1"), ("0", "inf")])
def test_a_scale_whose_ends_are_no_scale_is_refused(scale: tuple[str, str]):
    judge = [sys.executable, str(FOLDER / "hpsv3.py"), "--stub", "--port", "0", "--scale", *scale]
    answer = subprocess.run(judge, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 2
    assert f"--scale {scale[0]} {scale[1]} is not a scale: give the lowest score, then" in answer.stderr


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_no_judge_behind(tmp_path: Path, runner: str):
    settings = [*settings_of(runner, port := free_port()), "iterations=50", "tracking.to=[]"]
    child = command(tmp_path / "home", "train", "--preset", "smoke", "--run-id", "judged", *sets(settings))
    assert child.stdout is not None
    while "iteration 1" not in (line := child.stdout.readline()):
        assert line
    assert killed_with_its_family(child) == []
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
