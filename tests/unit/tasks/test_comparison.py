"""When a run done again counts as the same, and what is named where it does not; values by hand."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.deployed.forms import ReproductionForm
from flows.reproduction_inputs import config_again
from gpu_runtime.scheduling.scores import Score
from storage.config.run_config import RunConfig
from storage.evaluations.reproductions import HeldOut, Reference
from storage.home import Home
from storage.prompts.files import PromptRecord, compared_prompts, load_run_prompts
from storage.record.checkpoints import CheckpointStore
from tasks import evaluation
from tasks.comparison import compare, paired_interval
from tasks.iteration.phases import evaluate

ENVIRONMENT = {
    "torch": "2.13.0", "python": "3.11.7", "commit": "abc", "machine": "x86_64, 2 cores", "processor": "A",
    "accelerators": "none", "digest prompts.train": "1" * 64, "digest model": "2" * 64,
}  # fmt: skip


def reference(scores: tuple[float, ...] = (0.0, 0.5, 1.0, 1.0), **changes: object) -> Reference:
    held_out = [HeldOut(place, 0, score, score == 1) for place, score in enumerate(scores)]
    whole = Reference(
        "r", RunConfig().model_dump(mode="json"), ENVIRONMENT, {"weights.safetensors": "a" * 64},
        {1: 0.25, 2: 0.5}, {0: held_out, 2: held_out}, {"train": {0: "a", 1: "b"}, "evaluate": {0: "c"}},
    )  # fmt: skip
    return dataclasses.replace(whole, **changes)


OTHER_WEIGHTS = {"weights.safetensors": "b" * 64}


def environment(**changes: str) -> dict[str, str]:
    return ENVIRONMENT | changes


def test_the_same_bits_are_identical_and_another_version_is_named():
    said = compare(reference(), reference(), 0.05)
    assert (said.verdict, said.causes, said.results) == ("identical", [], [])
    assert said.message == "bit-identical: 1 files of weights and 8 held-out scores"
    said = compare(reference(), reference(environment=environment(torch="2.14.0")), 0.05)
    assert said.verdict == "identical"
    assert said.causes == [{"kind": "versions", "what": "torch", "was": "2.13.0", "is": "2.14.0"}]
    assert "although these differ: versions: torch was 2.13.0, is 2.14.0" in said.message


@pytest.mark.parametrize("cores", ["x86_64, 2 cores", "x86_64, 8 cores"])
def test_one_other_bit_of_the_weights_is_a_drift_on_the_same_kind_of_device(cores: str):
    now = reference(environment=environment(machine=cores), digests=OTHER_WEIGHTS)
    said = compare(reference(), now, 1.0)
    assert said.verdict == "drifted"
    weights = {"what": "SHA-256 of weights.safetensors", "was": "a" * 12, "is": "b" * 12}
    assert said.results == [{"kind": "result", **weights}]
    repeats = "no recorded fact differs, so the run itself is not repeatable"
    assert said.message.endswith(f"machine was x86_64, 2 cores, is {cores}" if said.causes else repeats)


def test_a_seed_is_named():
    now = reference(config=RunConfig(seed=1).model_dump(mode="json"), rewards={1: 0.25, 2: 0.75})
    said = compare(reference(), now, 0.05)
    assert said.causes == [{"kind": "configuration", "what": "seed", "was": "0", "is": "1"}]
    assert said.results == [
        {"kind": "result", "what": "mean reward, first in iteration 2", "was": "0.5", "is": "0.75"}
    ]
    assert said.message == (
        "1 result differs: the mean reward, first in iteration 2 was 0.5, is 0.75; "
        "what differs: configuration: seed was 0, is 1"
    )


def test_the_first_reward_and_the_images_that_differ_are_counted():
    said = compare(reference(), reference((0.0, 0.5, 1.0), rewards={1: 0.5, 2: 0.75}), 0.05)
    assert [(one["what"], one["was"], one["is"]) for one in said.results] == [
        ("mean reward, first in iteration 1", "0.25", "0.5"),
        ("held-out scores after iteration 0 (1 images differ)", "0.625", "0.5"),
        ("held-out scores after iteration 2 (1 images differ)", "0.625", "0.5"),
    ]
    assert said.message.startswith("3 results differ, such as the mean reward")


def test_a_setting_of_a_section_is_named_and_the_cluster_is_none():
    config = RunConfig().model_dump(mode="json")
    there = config | {"runtime": config["runtime"] | {"cluster": "10.0.0.5:6379", "lease_s": 60.0}}
    del there["price"]
    assert [one["what"] for one in compare(reference(), reference(config=there), 0).causes] == [
        "price",
        "runtime.lease_s",
    ]


@pytest.mark.parametrize(
    "fact",
    ["digest reward", "digest evaluation.judge", "digest exploration.strategy", "digest algorithm.objective"],
)
def test_a_file_of_code_that_one_run_does_not_record_is_no_difference(fact: str):
    recorded = reference(environment=environment(**{fact: "4" * 64}))
    assert compare(reference(), recorded, 0).causes == compare(recorded, reference(), 0).causes == []


def test_another_version_of_the_rewards_file_is_named():
    was, now = (reference(environment=environment(**{"digest reward": digit * 64})) for digit in "45")
    assert compare(was, now, 0).causes == [
        {"kind": "data", "what": "SHA-256 of reward", "was": "4" * 12, "is": "5" * 12}
    ]


def test_a_prompt_is_named_with_both_texts():
    now = reference(
        prompts={"train": {0: "a", 1: "B", 7: "used by this run only"}, "evaluate": {0: "c"}},
        environment=environment(**{"digest prompts.train": "3" * 64}),
    )
    assert compare(reference(), now, 0).causes == [
        {"kind": "data", "what": "SHA-256 of prompts.train", "was": "1" * 12, "is": "3" * 12},
        {"kind": "data", "what": "training prompt 2", "was": "b", "is": "B"},
    ]


@pytest.mark.parametrize(("prompts", "more"), [(5, []), (7, [("training prompts", "2 more", "others")])])
def test_five_prompts_are_shown(prompts: int, more: list[tuple[str, str, str]]):
    was, now = (reference(prompts={"train": dict.fromkeys(range(prompts), text)}) for text in "ab")
    found = [(one["what"], one["was"], one["is"]) for one in compare(was, now, 0).causes]
    assert found == [*((f"training prompt {number}", "a", "b") for number in range(1, 6)), *more]


@pytest.mark.parametrize(
    ("was", "now", "causes"),
    [
        ({}, {"processor": "B", "commit": "def", "python": "3.12.1"}, [
            ("code", "commit", "abc", "def"), ("device", "processor", "A", "B"),
            ("versions", "python", "3.11.7", "3.12.1"),
        ]),
        ({"processor": None}, {}, [("device", "processor", "not recorded", "A")]),
        ({}, {"preset": "glyphs"}, []),
        ({"preset": "glyphs"}, {"preset": "mine.toml"}, []),
        # Devices are compared where both recorded them.
        ({}, {"devices": "NVIDIA H100"}, []),
        ({"devices": "NVIDIA H100"}, {}, []),
        ({"devices": "NVIDIA H100"}, {"devices": "cpu"}, [("device", "devices", "NVIDIA H100", "cpu")]),
    ],
)  # fmt: skip
def test_the_facts_that_differ_are_named_by_kind(
    was: dict[str, Any], now: dict[str, Any], causes: list[tuple[str, ...]]
):
    known = {name: value for name, value in (ENVIRONMENT | was).items() if value is not None}
    found = compare(reference(environment=known), reference(environment=environment(**now)), 0).causes
    assert sorted(tuple(one.values()) for one in found) == causes


def test_the_paired_interval_by_hand():
    # Gaps 0.1, 0.3, -0.1, 0.1: mean 0.1; deviation sqrt(0.08 / 3) = 0.1633; t(0.975, 3) = 3.1824.
    was, now = reference((0.1, 0.1, 0.5, 0.4)), reference((0.2, 0.4, 0.4, 0.5))
    interval, pairs = paired_interval(was, now)
    assert interval is not None
    assert pairs == 4
    assert interval.mean == pytest.approx(0.1)
    assert interval.high - interval.mean == pytest.approx(3.182446 * 0.163299 / 2, rel=1e-5)
    assert interval.mean - interval.low == pytest.approx(interval.high - interval.mean)


def test_no_two_pairs_no_interval():
    one_pair = dataclasses.replace(reference(), scores={2: [HeldOut(0, 0, 1.0, True)]})
    another_iteration = dataclasses.replace(reference(), scores={5: reference().scores[2]})
    assert paired_interval(reference(), one_pair) == (None, 1)
    assert paired_interval(reference(), another_iteration) == (None, 0)
    both = [HeldOut(0, 0, 0.0, False), HeldOut(1, 0, 1.0, True)]
    two_pairs = dataclasses.replace(one_pair, scores={0: one_pair.scores[2], 2: both})
    interval, pairs = paired_interval(reference(), two_pairs)
    assert interval is not None and pairs == 2
    assert (interval.low, interval.mean, interval.high) == (-1.0, 0.25, 1.0), "no difference is larger"


@pytest.mark.parametrize(
    ("scores", "tolerance", "verdict"),
    [
        ((0.5, 0.0, 1.0, 1.0), 0.05, "within"),  # gaps +0.5, -0.5: mean 0
        ((0.0, 0.5, 1.0, 1.0), 0.0, "within"),  # no gap
        ((0.5, 0.5, 1.0, 1.0), 0.125, "within"),  # mean 0.125, interval -0.27 to 0.52
        ((0.5, 0.5, 1.0, 1.0), 0.1, "drifted"),  # the mean is above the tolerance
    ],
)
def test_on_another_kind_of_device_an_interval_counts(
    scores: tuple[float, ...], tolerance: float, verdict: str
):
    now = reference(scores, environment=environment(processor="B"), digests=OTHER_WEIGHTS)
    said = compare(reference(), now, tolerance)
    assert said.verdict == verdict
    assert f"tolerance {tolerance:g}" in said.message
    assert "95 % interval" in said.message


def test_an_interval_without_zero_is_a_drift_whatever_the_tolerance():
    elsewhere = environment(processor="B")
    said = compare(
        reference((0.1, 0.2, 0.3, 0.4)), reference((0.3, 0.41, 0.5, 0.62), environment=elsewhere), 1.0
    )
    assert said.interval is not None and said.interval.low > 0
    assert said.verdict == "drifted"


def chosen_by_times(**changes: Any) -> Reference:
    config = RunConfig.model_validate({"sequence_parallel": {"rollout": "auto"}}).model_dump(mode="json")
    return reference(config=config, **changes)


def test_other_bits_of_a_run_whose_degree_is_measured_pass_with_the_same_scores_alone():
    was, now = chosen_by_times(), chosen_by_times(digests=OTHER_WEIGHTS)
    said = compare(was, now, 0.05)
    assert said.verdict == "within"
    assert said.message.startswith("degrees chosen by measured times (sequence_parallel is auto), other bits")
    assert compare(was, was, 0.05).verdict == "identical"
    said = compare(chosen_by_times(scores=(1.0,) * 4), chosen_by_times(scores=(0.5,) * 4), 0.05)
    assert said.verdict == "drifted"
    assert "held-out score differs by -0.5" in said.message
    assert "; 2 results differ, such as the held-out scores after iteration 0" in said.message


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (0.8020833333333334, 0.8333333333333334, ("0.8021", "0.8333")),
        (0.80208333, 0.80208334, ("0.80208333", "0.80208334")),
        (0.80208333331111, 0.80208333442222, ("0.802083333311", "0.802083334422")),
        (0.5, None, ("0.5", "None")),
        (3, 4, ("3", "4")),
    ],
)
def test_numbers_have_as_many_digits_as_it_takes_to_tell_them_apart(
    before: object, after: object, words: tuple[str, str]
):
    [result] = compare(reference(rewards={1: before}), reference(rewards={1: after}), 0.05).results
    assert (result["was"], result["is"]) == words


class Asked:
    """In the place of a run's devices: keeps how many prompts each evaluation has."""

    def __init__(self, config: RunConfig) -> None:
        _, self.evaluate_prompts = load_run_prompts(config)
        self.compared_prompts = compared_prompts(config, self.evaluate_prompts)
        self.asked: list[int] = []
        self.weights: tuple[Mapping[str, bytes], int] | None = None

    def restore(self, blobs: Mapping[str, bytes], version: int) -> None:
        self.weights = blobs, version

    def evaluate(self, prompts: list[PromptRecord]) -> Any:
        self.asked.append(len(prompts))
        return SimpleNamespace(samples=[], scores=[])


@pytest.fixture
def config() -> RunConfig:
    """Of the reproduction of a GenEval preset."""
    return config_again(ReproductionForm(preset="qwen-image-geneval-512"), None)


def test_a_run_done_again_has_all_of_them_before_and_after(config: RunConfig):
    devices = Asked(config)
    session: Any = SimpleNamespace(
        ends_after=lambda iteration: iteration == config.iterations,
        runtime=devices,
        timed=lambda phase: nullcontext(),
        unfinished=SimpleNamespace(begin=lambda phase, number: None),
    )
    for iteration in (0, config.evaluation.every, config.iterations):
        evaluate.fn(session, iteration)
    assert devices.asked == [553, 96, 553]


@pytest.mark.parametrize(("again", "prompts"), [(True, 553), (False, 96)])
def test_a_checkpoint_scored_again_has_all_of_them(
    config: RunConfig, again: bool, prompts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made: list[Asked] = []
    opened: list[tuple[RunConfig, Path]] = []

    def open_cluster(config: RunConfig, output: Path) -> Any:
        opened.append((config, output))
        return nullcontext()

    def runtime(config: RunConfig, cluster: Any) -> Any:
        made.append(Asked(config))
        return nullcontext(made[-1])

    newest = SimpleNamespace(blobs={"weights": b""}, state={"policy_version": 1}, iteration=config.iterations)
    monkeypatch.setattr(CheckpointStore, "load_latest", lambda self, passes_over: newest)
    monkeypatch.setattr(evaluation, "open_cluster", open_cluster)
    monkeypatch.setattr(evaluation, "Runtime", runtime)
    scored = evaluation.evaluate_weights.fn(Home(tmp_path).ensure(), config, "was", again=again)
    assert (made[0].asked, made[0].weights) == ([prompts], ({"weights": b""}, 1))
    untouched = evaluation.evaluate_weights.fn(Home(tmp_path), config, None, again=again)
    assert (scored.iteration, untouched.iteration) == (config.iterations, 0) and made[1].weights is None
    assert len(scored.prompts) == prompts and scored.evaluation.samples == []
    assert scored.started_at < scored.ended_at
    assert opened[0][0] is config and tmp_path in opened[0][1].parents


def test_the_output_of_old_evaluations_goes(tmp_path: Path):
    outputs = Home(tmp_path).logs / "evaluate"
    alive = outputs / str(os.getppid())
    ended = [outputs / str(2**22 + number) for number in range(25)]  # above the largest pid of Linux
    for at, folder in enumerate([alive, *ended]):
        folder.mkdir(parents=True)
        (folder / "scorer-0.log").write_text("said")
        os.utime(folder, (at, at))
    assert evaluation._output(Home(tmp_path)) == outputs / str(os.getpid())
    assert sorted(outputs.iterdir()) == sorted([alive, *ended[-20:]])


def test_what_is_compared_is_what_the_scoring_began_with(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A prompt file that is changed while the weights are scored is none of those that were scored."""
    facts = {"code": "before"}
    samples = [
        SimpleNamespace(request=SimpleNamespace(prompt_id=1, seed_index=seed, prompt="a cat"))
        for seed in (0, 1)
    ]
    found = SimpleNamespace(
        samples=samples, scores=[Score(0.5, True, ""), Score(0.0, False, "", error="timed out")]
    )
    named: list[str] = []

    def scored(home: Home, config: RunConfig, run_id: str, again: bool) -> Any:
        assert again
        facts["code"] = "after"
        return SimpleNamespace(iteration=7, evaluation=found)

    def with_options(task_run_name: str) -> Any:
        named.append(task_run_name)
        return scored

    monkeypatch.setattr(evaluation, "environment", lambda: dict(facts))
    monkeypatch.setattr(evaluation, "input_digests", lambda *_: {})
    monkeypatch.setattr(evaluation, "evaluate_weights", SimpleNamespace(with_options=with_options))
    again = evaluation.scored_again(Home(tmp_path), config, "was")
    assert again.environment["code"] == "before" and again.run_config == config
    assert again.scores == {7: [HeldOut(1, 0, 0.5, True)]}, "an image without a score has none"
    assert again.prompts == {"evaluate": {1: "a cat"}}
    assert named == ["evaluate-again {run_id}"]
