"""`spotlight compare-strategies`: its figures against values worked by hand, its runs, how it goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from flows import start
from flows.cli import command_line
from flows.cli.compare_strategies import compare_strategies
from storage.config.run_config import RunConfig
from storage.errors import RuntimeFailure
from storage.evaluations.strategies import compared_strategies, in_words, strategy_arms
from storage.home import Home
from storage.record.records import EvaluationRecord, IterationRecord, JudgedImage, SampleRecord, StateInterval
from storage.record.run_store import RunStore
from tasks.inputs import code_digests
from tests.tampering import set_run

PROMPTS = 60


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path / "home"))
    return RunStore(Home(tmp_path / "home").ensure())


def evaluated(store: RunStore, run_id: str, iteration: int, scores: Iterable[float]) -> None:
    images = [
        JudgedImage(place, 0, f"prompt {place}", "", score, False, "", None)
        for place, score in enumerate(scores)
    ]
    mean = sum(image.score for image in images) / len(images)
    at = 1000.0 + 100 * iteration
    store.commit_evaluation(EvaluationRecord(run_id, iteration, iteration, at, at + 1, mean, 0.0, images))


def trained(
    store: RunStore, run_id: str, iteration: int, samples: int, device_s: float, start_s: float = 0.0
) -> None:
    """An iteration with so many trained samples and one more, on a device at $0.10 a second."""
    rows = [
        SampleRecord(
            prompt_id=place, prompt="p", seed_index=0, policy_version=iteration - 1, score=0.5, exact=False,
            detail="", error=None, seed_rank=0, explored_score=None,
            advantage=None if place == samples else 1.0, worker="reserved-0",
        )
        for place in range(samples + 1)
    ]  # fmt: skip
    at = 1002.0 + 100 * (iteration - 1)
    intervals = [StateInterval("reserved-0", "reserved", "train", at, at + device_s, 360.0)]
    if start_s:
        intervals.insert(0, StateInterval("reserved-0", "reserved", "load", at - start_s, at, 360.0))
    store.commit_iteration(
        IterationRecord(run_id, iteration, iteration, at, at + device_s, {}, rows, intervals=intervals)
    )


def recorded(
    store: RunStore, run_id: str, strategy: str, gains: tuple[float, float], seed: int = 0, **settings: object
) -> None:
    """A run of six iterations: half of the prompts rise by one gain each three iterations, half by the other.

    One that explores trains on twice the samples, in one and a half times the time.
    """
    facts = {"seed": seed, "iterations": 6, "exploration": {"strategy": strategy}, **settings}
    store.create_run(run_id, RunConfig.model_validate(facts), {"devices": "cpu"}, os.getpid())
    explores = strategy != "plain"
    for iteration in range(7):
        if iteration:
            trained(store, run_id, iteration, 4 if explores else 2, 15.0 if explores else 10.0)
        if iteration % 3 == 0:
            scores = [gain * iteration / 3 for gain in gains for _ in range(PROMPTS // 2)]
            evaluated(store, run_id, iteration, scores)
    store.set_status(run_id, "finished")


def answer_of(store: RunStore, *run_ids: str) -> dict:
    with store.reading(*run_ids) as connection:
        return compared_strategies(connection, strategy_arms(connection, run_ids))


def test_scores_are_compared_at_equal_amounts(store: RunStore):
    recorded(store, "with", "off_policy", (0.3, 0.5))
    recorded(store, "without", "plain", (0.1, 0.3))
    answer = answer_of(store, "with", "without")
    assert (answer["baseline"], answer["modelled"]) == ("plain", True)
    found = answer["strategies"]["off_policy"]
    assert found["seeds"] == [0]
    assert "held-out prompts" in found["interval"]
    at_equal = found["at_equal"]
    assert {name: one["amount"] for name, one in at_equal.items()} == pytest.approx(
        {"iterations": 6, "samples": 12, "device_s": 60, "usd": 6}
    )
    # After 12 samples it is at its third iteration; after 60 s a third of the way from there to its sixth.
    assert {name: one["difference"] for name, one in at_equal.items()} == pytest.approx(
        {"iterations": 0.4, "samples": 0.0, "device_s": 2 / 15, "usd": 2 / 15}
    )
    assert at_equal["usd"]["baseline"] == pytest.approx(0.4)
    assert [name for name, one in at_equal.items() if one["is_clear"]] == ["iterations", "device_s", "usd"]
    short, *figures, how = in_words(answer)
    assert short == (
        "off_policy: scores clearly higher than plain at equal iterations, paid device time and dollars; "
        "no clear difference from plain at equal trained samples."
    )
    assert "at equal dollars ($6.00 (modelled)): +0.133" in figures[3]
    # A run that was cut off and resumed pays for repeated work and for a start: no strategy's fault.
    store.discard_after("with", 4)
    for iteration in (5, 6):
        trained(store, "with", iteration, 4, 15.0, start_s=50.0)
    evaluated(store, "with", 6, [gain * 2 for gain in (0.3, 0.5) for _ in range(PROMPTS // 2)])
    assert answer_of(store, "with", "without")["strategies"]["off_policy"]["at_equal"] == at_equal
    assert "another run seed may give another answer" in how
    at_equal["usd"]["amount"] = 0.0042  # of a smoke run
    assert "at equal dollars ($0.0042 (modelled))" in in_words(answer)[4]


@pytest.mark.parametrize(("spread", "is_clear"), [(0.1, False), (0.005, True)])
def test_with_several_seeds_the_interval_is_over_them(store: RunStore, spread: float, is_clear: bool):
    for seed in range(3):
        recorded(store, f"plain-{seed}", "plain", (0.1, 0.1), seed)
        gain = 0.2 + spread * (seed - 1) / 2
        recorded(store, f"stale-{seed}", "stale", (gain, gain), seed)
    runs = [f"{strategy}-{seed}" for strategy in ("plain", "stale") for seed in range(3)]
    answer = answer_of(store, *runs)
    found = answer["strategies"]["stale"]
    one = found["at_equal"]["iterations"]
    # Twice the gain a third: 0.2 - spread, 0.2, 0.2 + spread; Student's t of two degrees of freedom is 4.303.
    assert (one["difference"], one["is_clear"]) == (pytest.approx(0.2), is_clear)
    assert one["low"] == pytest.approx(0.2 - 4.303 * spread / 3**0.5, abs=1e-4)
    assert "over run seeds" in found["interval"]
    assert ("clearly higher" in in_words(answer)[0]) is is_clear
    assert "95 % t interval over run seeds (run seeds 0, 1, 2)." in in_words(answer)


def test_runs_that_differ_otherwise_are_no_comparison_of_strategies(store: RunStore):
    recorded(store, "plain", "plain", (0.1, 0.1))
    recorded(store, "stale", "stale", (0.2, 0.2), optimizer={"learning_rate": 1e-3})
    recorded(store, "other-seed", "stale", (0.2, 0.2), seed=1)
    with store.reading() as connection:
        assert strategy_arms(connection, ["plain", "stale"]) == {}
        assert strategy_arms(connection, ["plain", "other-seed"]) == {}, "no seed is shared"
        assert strategy_arms(connection, ["plain"]) == {}


@pytest.mark.parametrize("of", ["reward", "evaluation.judge", "algorithm.objective"])
def test_runs_with_different_code_digests_are_not_compared(store: RunStore, of: str):
    for run_id, strategy, digest in (("a", "plain", "1"), ("b", "stale", "2"), ("c", "off_policy", "")):
        recorded(store, run_id, strategy, (0.1, 0.1))
        set_run(store, run_id, environment={f"digest {of}": digest * 64} if digest else {})
    with store.reading() as connection:
        assert strategy_arms(connection, ["a", "b"]) == {}
        assert strategy_arms(connection, ["a", "b", "c"]) == {}
        assert strategy_arms(connection, ["a", "c"]) == {"plain": {0: "a"}, "off_policy": {0: "c"}}


def test_strategies_may_have_different_digests_but_one_each(store: RunStore):
    runs = (("a", "plain", 0, ""), ("b", "m:New", 0, "1"), ("c", "m:New", 1, "2"), ("d", "n:Other", 0, "3"))
    for run_id, strategy, seed, digest in runs:
        recorded(store, run_id, strategy, (0.1, 0.1), seed)
        set_run(store, run_id, environment={"digest exploration.strategy": digest * 64} if digest else {})
    with store.reading() as connection:
        assert strategy_arms(connection, ["a", "b", "c"]) == {}
        assert list(strategy_arms(connection, ["a", "b", "d"])) == ["plain", "m:New", "n:Other"]


class _Runs:
    """Stand-in for the training: records each run as finished, except those that are to fail once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began: list[tuple[str, int]] = []
        self.fails: set[str] = set()
        self.after: Callable[[], object] = lambda: None
        monkeypatch.setattr(start, "look_at_inputs", lambda config: None)
        monkeypatch.setattr(start, "post_train_under_server", self._train)

    def _train(
        self,
        home: Home,
        run_id: str,
        config: RunConfig,
        preset: str = "",
        new_limits: bool = False,
        **_: None,
    ) -> dict[str, str]:
        store = RunStore(home)
        if new_limits:
            store.set_limits(run_id, config)
        self.began.append((run_id, config.iterations))
        if any(row.run_id == run_id for row in store.runs()):
            store.resume_run(run_id, os.getpid())
        else:
            facts = {"preset": preset, **code_digests(config)}
            store.create_run(run_id, config, facts, os.getpid())
            evaluated(store, run_id, 0, [0.2] * PROMPTS)
        if run_id in self.fails:
            self.fails.remove(run_id)
            store.set_status(run_id, "failed", "by a test")
            raise RuntimeFailure("by a test")
        for iteration in range((store.run(run_id).last_iteration or 0) + 1, config.iterations + 1):
            trained(store, run_id, iteration, 2, 1.0)
        gain = 0.0 if config.exploration.strategy == "plain" else 0.3
        evaluated(store, run_id, config.iterations, [0.2 + gain] * PROMPTS)
        store.set_status(run_id, "finished")
        self.after()
        return {"run_id": run_id}


def compared(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *given: str) -> str:
    arguments = ["--preset", "glyphs", "--cluster", "local", *given]
    monkeypatch.setattr(sys, "argv", ["spotlight", "compare-strategies", *arguments])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    answer = capsys.readouterr()
    return answer.out if not ended.value.code else answer.err


def test_a_comparison_goes_on_where_it_was_cut_off(
    store: RunStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    runs = _Runs(monkeypatch)
    runs.fails = {"glyphs-strategies-plain-1"}
    given = ("--iterations", "6", "--seeds", "2")
    assert "by a test" in compared(capsys, monkeypatch, *given)
    out = compared(capsys, monkeypatch, *given)
    pairs = [f"glyphs-strategies-{name}-{seed}" for seed in (0, 1) for name in ("plain", "off_policy")]
    assert [run_id for run_id, _ in runs.began] == [*pairs[:3], *pairs[2:]], "the failed one again"
    assert {row.config.name for row in store.runs()} == {"glyphs-strategies"}
    assert {row.environment["preset"] for row in store.runs()} == {"glyphs"}
    assert "off_policy: scores clearly higher than plain at equal iterations" in out
    assert f"/runs?compare={'%2C'.join(pairs)}" in out
    answer = json.loads(compared(capsys, monkeypatch, *given, "--json").splitlines()[-1])
    assert answer["strategies"]["off_policy"]["at_equal"]["iterations"]["difference"] == pytest.approx(0.3)
    assert len(runs.began) == 5, "nothing is done twice"
    assert "has other settings" in compared(capsys, monkeypatch, *given, "--set", "algorithm.group_size=8")
    assert "--iterations 6 or more" in compared(capsys, monkeypatch, "--iterations", "5")
    compared(capsys, monkeypatch, "--iterations", "8")
    assert runs.began[5:] == [(run_id, 8) for run_id in pairs[:2]], "finished runs go on"


def test_stopped_comparison_says_how_to_continue(
    store: RunStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    runs = _Runs(monkeypatch)
    runs.after = lambda: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        compare_strategies(2, "glyphs")
    assert len(runs.began) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "Stopped; the same command continues the comparison."


def test_a_rewards_file_that_changes_between_the_runs_is_refused(
    store: RunStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    mine = tmp_path / "mine.py"
    mine.write_text("def r(image, prompt):\n    return 1.0\n")
    old, new = mine.read_text(), mine.read_text() + "# changed\n"
    runs = _Runs(monkeypatch)
    runs.fails = {"glyphs-strategies-off_policy-0"}
    given = ("--iterations", "2", "--set", f"reward.scorer={mine}:r")
    assert "by a test" in compared(capsys, monkeypatch, *given)
    shutil.rmtree(store.home.run("glyphs-strategies-off_policy-0"))
    mine.write_text(new)
    refused = compared(capsys, monkeypatch, *given)
    assert "mine.py:r' differs between runs 'glyphs-strategies-plain-0' (SHA-256 " in refused
    assert len(runs.began) == 2, "before anything is trained"
    mine.write_text(old)
    assert "compare=" in compared(capsys, monkeypatch, *given)
    mine.write_text(new)
    assert "compare=" in compared(capsys, monkeypatch, *given), "all runs are there, of one version"
    set_run(store, "glyphs-strategies-plain-0", environment={"digest reward": "2" * 64})
    assert f"(SHA-256 {'2' * 12}) and " in compared(capsys, monkeypatch, *given)


@pytest.mark.parametrize(
    ("given", "code", "began"),
    [
        ("--set reward.scorer=mine.py:r", "def r(image, prompt):\n    return 1.0\n", ["plain"]),
        ("--set evaluation.judge=mine.py:r", "def r(image, prompt):\n    return 1.0\n", ["plain"]),
        (
            "--set algorithm.objective=mine.py:o",
            "from gpu_runtime.learning.registry import ObjectivePlugin\no = ObjectivePlugin(print)\n",
            ["plain"],
        ),
        (
            "--strategies plain,mine.py:s --seeds 2",
            "from gpu_runtime.exploration.registry import STRATEGIES\ns = STRATEGIES.find('stale')\n",
            ["plain", "mine.py-s"],
        ),
    ],
)
def test_no_further_run_begins_once_a_file_of_code_has_changed(
    store: RunStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    given: str, code: str, began: list[str],
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    mine, runs = tmp_path / "mine.py", _Runs(monkeypatch)
    mine.write_text(code)
    runs.after = lambda: mine.write_text(mine.read_text() + "# changed\n")
    refused = compared(capsys, monkeypatch, "--iterations", "2", *given.split())
    assert "mine.py:" in refused and "differs between runs" in refused
    assert [run_id for run_id, _ in runs.began] == [f"glyphs-strategies-{name}-0" for name in began]


def test_a_preset_that_explores_is_compared_with_its_own_strategy(
    store: RunStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    runs = _Runs(monkeypatch)
    given = ("--iterations", "2", "--name", "mine", "--set", "exploration.strategy=stale")
    out = compared(capsys, monkeypatch, *given)
    assert [run_id for run_id, _ in runs.began] == ["mine-plain-0", "mine-stale-0"]
    assert "too short to judge: 2 iterations" in out
