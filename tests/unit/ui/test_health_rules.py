"""The rules of the page Health: each at its limit, with the figures and the advice that it gives."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from storage.config.run_config import RunConfig
from storage.environment import DECISIONS
from storage.evaluations.quality import quality_verdict
from storage.home import Home
from storage.record.ledger import Entry, Ledger, Loss, Spent, UnjoinedDevice, WorkerAccount
from storage.record.run_store import RunRow
from tasks.inputs import plugin_facts
from ui.data.run import Change, QualityView, RunView
from ui.pages.health import rules
from ui.pages.health.findings import Evidence, Finding, Rule, by_level

EMPTY = pd.DataFrame({"iteration": [], "ended_at": [], "elapsed_s": []})


def view(
    metrics: dict[str, list[float]] | None = None,
    scores: list[float] | None = None,
    change: Change | None = None,
    **sections: dict[str, Any],
) -> RunView:
    config = RunConfig().model_dump(mode="json")
    for section, values in sections.items():
        config[section] |= values
    facts = plugin_facts(RunConfig.model_validate(config)) | {"accelerators": "3 x NVIDIA H100"}
    row = RunRow("r", "r", "finished", 0.0, 1.0, "h", 1, None, config, facts, {}, None, None)
    frame = EMPTY
    if metrics:
        count = len(next(iter(metrics.values())))
        frame = pd.DataFrame({"iteration": range(1, count + 1), "ended_at": 0.0, "elapsed_s": 0.0, **metrics})
    held_out = EMPTY.assign(score=[])
    if scores:
        held_out = pd.DataFrame(
            {"iteration": range(0, 10 * len(scores), 10), "score": scores, "elapsed_s": 0.0}
        )
    cost = pd.DataFrame({"iteration": [9], "reserved_usd": [3.0], "spot_usd": [1.0]})
    return RunView(Home(Path("/home")), row, "finished", held_out, frame, cost, EMPTY, change)


def ledger(*spent: tuple[str, str, float], samples: int = 0, losses: tuple[Loss, ...] = ()) -> Ledger:
    entries = tuple(Entry("iteration", market, state, Spent(s, s / 100)) for market, state, s in spent)
    workers = (WorkerAccount("reserved-0", "reserved", 1.0, 1.0, 0.0),) if spent else ()
    return Ledger(
        entries, workers, (), losses, has_device_events=bool(losses), samples=samples, useful_samples=0
    )


def found(
    rule: Rule, run: RunView | None = None, book: Ledger | None = None, images: QualityView | None = None
) -> Finding:
    evidence = Evidence(run or view(), book or ledger(), images or QualityView())
    level, *words = rule(evidence)
    return Finding(rules.RULES[rule], level, *words)


def test_a_run_of_which_nothing_is_recorded_neither_passes_nor_fails():
    levels = by_level([found(rule) for rule in rules.RULES])
    assert set(levels) == {"unknown"}


def test_idle_spot_devices_and_the_candidates_that_would_fill_the_window():
    book = ledger(("spot", "rollout", 40.0), ("spot", "explore", 20.0), ("spot", "idle", 41.0))
    run = view(exploration={"strategy": "stale", "candidates": 48})
    finding = found(rules.spot_idle, run, book)
    assert finding.level == "warning"
    assert (
        finding.text
        == "Spot devices were idle for 41 % of their paid time: 41.0 s, $0.41: the window is longer than "
        "exploration."
    )
    # 20 s of drafts and 41 s of nothing: 61 / 20 as many.
    assert finding.advice == "Raise `exploration.candidates` from 48 to 147."
    counted = view(exploration={"strategy": "stale", "drafts": 100})
    assert found(rules.spot_idle, counted, book).advice.endswith("`exploration.drafts` from 100 to 305.")
    plain = found(rules.spot_idle, view(), book)
    assert plain.advice.startswith("Rent fewer spot devices, let them train")
    assert "`exploration.strategy=auto`" in plain.advice and "docs/measurements.md" in plain.advice


def test_idle_spot_devices_of_a_run_that_decided_to_stay_plain():
    book = ledger(("spot", "rollout", 40.0), ("spot", "idle", 41.0))
    run = view(exploration={"strategy": "auto"})
    assert "Nothing has been drafted yet" in found(rules.spot_idle, run, book).advice
    run.row.environment[DECISIONS] = "2 plain, 5 stale"
    assert "Nothing has been drafted yet" in found(rules.spot_idle, run, book).advice
    run.row.environment[DECISIONS] = "2 plain, 5 stale, 10 plain"
    assert found(rules.spot_idle, run, book).advice.startswith("Rent fewer spot devices")


def test_spot_devices_that_idle_little_are_fine():
    book = ledger(("spot", "rollout", 80.0), ("spot", "idle", 20.0))
    assert found(rules.spot_idle, view(), book).level == "passed"


def test_idle_reserved_devices():
    busy = ledger(("reserved", "train", 80.0), ("reserved", "idle", 20.0))
    assert found(rules.reserved_idle, view(), busy).level == "passed"
    idle = ledger(("reserved", "train", 79.0), ("reserved", "idle", 21.0))
    finding = found(rules.reserved_idle, view(), idle)
    assert (finding.level, "runtime.scorer_workers` (now 2)" in finding.advice) == ("warning", True)


@pytest.mark.parametrize(("wait_s", "level"), [(2.0, "passed"), (2.1, "warning")])
def test_waiting_for_seeds(wait_s: float, level: str):
    run = view({"explore_wait_s": [wait_s] * 3, "iteration_s": [20.0] * 3}, exploration={"strategy": "fresh"})
    finding = found(rules.exploration_wait, run)
    assert finding.level == level
    assert ("strategy=stale" in finding.advice) == (level == "warning")


def test_loading_and_discarded_work():
    book = ledger(("spot", "load", 16.0), ("spot", "lost", 6.0), ("spot", "rollout", 78.0))
    assert found(rules.loading, view(), book).level == "warning"
    again = found(rules.discarded_work, view(checkpoint={"every": 5}), book)
    assert again.advice == "Save more often: lower `checkpoint.every` (now 5) to 1."
    assert "events" in found(rules.discarded_work, view(), book).advice


def test_the_work_that_was_lost_with_devices():
    loss = Loss("spot-0", "spot", 1, 0.0, "rollout", 3.0, "gone")
    few = found(rules.losses, view(), ledger(("spot", "rollout", 150.0), losses=(loss,)))
    assert (few.level, few.text) == (
        "passed", "Devices lost: 1, with at most 3.0 s of work, 2.0 % of the paid spot time."
    )  # fmt: skip
    many = ledger(("spot", "rollout", 149.0), losses=(loss,))
    finding = found(rules.losses, view(), many)
    assert (finding.level, "`runtime.commit_steps` to 1 (now 0" in finding.advice) == ("warning", True)


def test_a_bill_that_does_not_add_up():
    entry = Entry("iteration", "spot", "rollout", Spent(10.0, 1.0))
    worker = WorkerAccount("spot-0", "spot", 10.1, 10.0, 0.0)
    book = Ledger((entry,), (worker,), (), (), has_device_events=True, samples=0, useful_samples=0)
    finding = found(rules.accounts, view(), book)
    assert (finding.level, "by 0.99 % (limit 0.1 %)" in finding.text) == ("problem", True)
    finding = found(rules.accounts, view(), ledger(("spot", "idle", 1.0)))
    assert (finding.level, finding.text) == ("passed", "All paid time is accounted for.")


def test_devices_that_never_joined_and_those_that_came_late():
    def joined(**figures) -> Ledger:
        return dataclasses.replace(ledger(("spot", "idle", 1.0)), has_device_events=True, **figures)

    assert found(rules.starts, view(), joined()).level == "passed"
    late = found(rules.starts, view(), joined(failed_starts=3))
    assert late.level == "warning" and "workers that ended while loading: 3" in late.text
    absent = UnjoinedDevice("spot-0", 0, "no spot instance had room for it")
    assert found(rules.starts, view(), joined(unjoined=(absent,))).level == "warning"
    broken = UnjoinedDevice("spot-1", 4, "no model folder /x")
    finding = found(rules.starts, view(), joined(unjoined=(absent, broken), failed_starts=4))
    assert finding.level == "problem"
    assert finding.text == "spot-0, spot-1 never joined. spot-1: no model folder /x."


def test_jumps_of_the_clock():
    calm = ledger(("spot", "idle", 1.0))
    assert found(rules.clock, view(), calm).level == "passed"
    finding = found(rules.clock, view(), dataclasses.replace(calm, clock_jumps=("moved by +60 s", "x")))
    assert (finding.level, finding.text) == ("warning", "Jumps: 2; the latest: moved by +60 s.")


CLEAR_GAIN, CLEAR_LOSS, UNCLEAR = (Change(mean, 0.05, 96, 0.3, 0.3 + mean) for mean in (0.3, -0.2, 0.01))


@pytest.mark.parametrize(
    ("scores", "change", "level", "words"),
    [
        ([0.4], None, "unknown", "no second evaluation"),
        ([0.4, 0.7], CLEAR_GAIN, "passed", "0.40 before training, 0.70 now"),
        ([0.6, 0.4], CLEAR_LOSS, "problem", "clearly worse"),
        ([0.4, 0.8, 0.75, 0.74], CLEAR_GAIN, "warning", "2 evaluations old"),
        ([0.4, 0.8, 0.78, 0.77], CLEAR_GAIN, "passed", ""),
        ([0.4, 0.7, 0.7, 0.705, 0.70, 0.705], CLEAR_GAIN, "warning", "4 evaluations brought +0.005"),
        ([0.4, 0.5, 0.6, 0.65, 0.70, 0.705], CLEAR_GAIN, "passed", ""),
    ],
)  # fmt: skip
def test_the_course_of_the_score(scores: list[float], change: Change | None, level: str, words: str):
    run = view(scores=scores, change=change)
    finding = found(rules.score_course, run)
    assert finding.level == level
    assert words in finding.text
    assert "the run" not in finding.advice.replace("An iteration", ""), "it has ended"
    live = found(rules.score_course, dataclasses.replace(run, status="running"))
    assert ("the run" in live.advice.lower()) == (level in ("problem", "warning"))


def test_a_run_of_two_iterations_is_too_short_to_be_judged():
    run = view(scores=[0.6, 0.4], change=CLEAR_LOSS)
    run.scores["iteration"] = [0, 2]
    finding = found(rules.score_course, run)
    assert (finding.level, finding.advice) == ("unknown", "")
    assert finding.text == "Too short to judge: 2 iterations; at least 5 are needed."


@pytest.mark.parametrize(("dropped", "level"), [(4.0, "passed"), (5.0, "warning"), (9.0, "problem")])
def test_groups_without_variance(dropped: float, level: str):
    run = view({"groups": [16.0] * 3, "groups_dropped": [dropped] * 3, "reward_mean": [0.9] * 3})
    finding = found(rules.zero_variance, run)
    assert finding.level == level
    assert "(mean of the latest iterations, at most 20)" in finding.text, (
        "the page Convergence shows the latest one"
    )
    if level != "passed":
        assert "too easy" in finding.advice, "exploration gained least where most images are right"
        usual = view({"groups": [16.0], "groups_dropped": [dropped], "reward_mean": [0.5]})
        advice = found(rules.zero_variance, usual).advice
        assert "`exploration.strategy=stale`" in advice
        assert "costs time on others" in advice and "compare-strategies" in advice, "as measured"


@pytest.mark.parametrize("mean", [0.0, 0.5, 1.0])
def test_a_reward_that_never_tells_samples_apart_is_to_be_checked(mean: float):
    metrics = {"groups": [4.0] * 9, "groups_dropped": [4.0] * 9, "reward_mean": [mean] * 9}
    finding = found(rules.zero_variance, view(metrics))
    assert finding.level == "problem"
    assert "check the reward" in finding.advice and "exploration" not in finding.advice
    metrics["groups_dropped"][0] = 3.0
    assert "check the reward" not in found(rules.zero_variance, view(metrics)).advice, "it once did"


@pytest.mark.parametrize(
    ("deviation", "level", "words"),
    [
        (0.0, "passed", "Exactly 1 in the last 2 iterations (limit 1e-05)."),
        (5e-6, "passed", "At most 5.0e-06 from 1"),
        (6e-6, "warning", "(limit 1e-05)"),
        (2e-5, "problem", "At most 2.0e-05 from 1"),
    ],
)
def test_the_ratio_against_its_limit(deviation: float, level: str, words: str):
    finding = found(rules.ratio, view({"ratio_deviation": [0.0, deviation]}))
    assert finding.level == level
    assert words in finding.text


def test_a_reward_that_is_exploited():
    course = {"kl": [0.01 * (i + 1) for i in range(30)]}
    gamed = view(course, [0.4, 0.8, 0.6, 0.5], CLEAR_GAIN, algorithm={"kl_weight": 0.01})
    finding = found(rules.reward_gaming, gamed)
    assert (finding.level, "`algorithm.kl_weight` (now 0.01)" in finding.advice) == ("problem", True)
    rising = view(course, [0.4, 0.6, 0.7, 0.8], CLEAR_GAIN)
    assert found(rules.reward_gaming, rising).level == "passed"
    assert found(rules.reward_gaming, view({"kl": [0.0, 0.0]})).level == "unknown"


@pytest.mark.parametrize(("share", "level"), [(0.5, "passed"), (0.6, "problem")])
def test_clipping(share: float, level: str):
    finding = found(rules.clipping, view({"clip_share": [share] * 2}))
    assert finding.level == level
    assert finding.advice == (
        "" if level == "passed" else "Lower `optimizer.learning_rate` from 0.0001 to 5e-05."
    )
    nft = view({"clip_share": [share]}, algorithm={"objective": "nft"})
    listed = [rules.findings_of(Evidence(run, ledger())) for run in (nft, view())]
    assert [len(findings) for findings in listed] == [len(rules.RULES) - 1, len(rules.RULES)]


@pytest.mark.parametrize(
    ("norms", "level"),
    [([0.2, 0.3, 0.2], "passed"), ([0.2, 0.2, 2.1], "warning"), ([0.2, float("inf"), 0.2], "warning")],
)
def test_gradients(norms: list[float], level: str):
    assert found(rules.gradients, view({"gradient_norm": norms})).level == level


@pytest.mark.parametrize(("errors", "level"), [(0.0, "passed"), (5.0, "warning"), (6.0, "problem")])
def test_the_scorer(errors: float, level: str):
    metrics = {"scorer_errors": [errors, 0.0], "groups_failed": [2.0, 0.0], "groups": [8.0, 8.0]}
    finding = found(rules.scorer, view(metrics), ledger(samples=100))
    assert finding.level == level
    assert ("2 of 16 prompt groups were not trained on" in finding.text) is (level != "passed")


@pytest.mark.parametrize(("spearman", "level"), [(0.5, "passed"), (0.49, "problem")])
def test_stale_ranks(spearman: float, level: str):
    assert found(rules.stale_ranks, view({"spearman": [spearman]})).level == level


def test_no_rule_fails_where_the_settings_are_of_another_version():
    run = view({"groups": [16.0], "groups_dropped": [16.0], "clip_share": [1.0], "ratio_deviation": [1.0]})
    row = RunRow("r", "r", "finished", 0.0, 1.0, "h", 1, None, {"gone": 1}, {}, {}, None, None)
    other = RunView(run.home, row, "finished", run.scores, run.metrics, run.cost, EMPTY, None)
    book = ledger(("spot", "idle", 60.0), ("spot", "explore", 40.0), ("reserved", "idle", 10.0))
    levels = by_level([found(rule, other, book) for rule in rules.RULES])
    assert "problem" in levels


def quality(score: tuple[float, float], distance: tuple[float, float]) -> QualityView:
    """Sixteen held-out images, each changed in the same way."""
    rows = [
        (f"sign {place}", 0, name, before, after)
        for place in range(16)
        for name, (before, after) in {"score": score, "truth_distance": distance}.items()
    ]
    frame = pd.DataFrame(rows, columns=["prompt", "seed_index", "name", "before", "after"])
    return QualityView(verdict=quality_verdict(frame))


@pytest.mark.parametrize(
    ("score", "distance", "level"),
    [
        ((0.4, 0.6), (0.1, 0.15), "problem"),
        ((0.6, 0.6), (0.1, 0.15), "warning"),
        ((0.4, 0.6), (0.1, 0.1), "passed"),
    ],
)
def test_a_score_that_rises_while_images_get_worse_is_a_problem(
    score: tuple[float, float], distance: tuple[float, float], level: str
):
    finding = found(rules.hacking, images=quality(score, distance))
    assert finding.level == level
    if level == "problem":
        assert "Score 0.400 -> 0.600; Distance to the rendered picture (1 - SSIM) 0.1 -> 0.15" in finding.text
        assert "`algorithm.kl_weight` (now 0)" in finding.advice
