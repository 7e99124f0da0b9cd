"""The strategy that decides: what it follows, when, and what goes through a record."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu_runtime.exploration.explorer import SeedExplorer
from gpu_runtime.exploration.measured_iterations import IterationTimes, SeedEvidence
from gpu_runtime.exploration.plan import Note, SeedPlan
from gpu_runtime.exploration.registry import STRATEGIES, strategy_of
from gpu_runtime.exploration.strategies.auto import Auto
from gpu_runtime.exploration.strategies.plain import Plain
from gpu_runtime.exploration.strategies.strategy import Ahead, TrainingEvidence, refuse_too_few_drafts
from gpu_runtime.learning.report import OffPolicyFigures
from storage.config.run_config import RunConfig
from storage.environment import DECISIONS, by_iteration, read_decisions
from storage.errors import ConfigurationError
from tasks.chaos.faults import refuse_unfit
from tasks.inputs import refuse_unfit_facts
from tests.tiny_exploration import make_config

TRAINING = IterationTimes(
    rollout_s=10.0, judging_s=0.0, train_s=100.0, draft_wait_s=0.0, whole_s=112.0, trained=16, rollers=2
)
"""Training bounds an iteration, and its window holds 160 drafts on two devices."""

ROLLOUT = replace(TRAINING, rollout_s=100.0, train_s=1.0, whole_s=101.0)
"""Nothing is beside which drafts could be made: two devices make none in a second."""


def config_of(**exploration: Any) -> RunConfig:
    """Eight prompts of four samples, of 32 candidates."""
    settings = {"strategy": "auto", "candidates": 32, **exploration}
    return make_config(**settings).changed(algorithm={"prompts_per_iteration": 8, "group_size": 4})


def graded(prompts: int = 8) -> Mapping[int, Sequence[float]]:
    return dict(enumerate(np.random.default_rng(0).normal(0.5, 0.1, (prompts, 4)).tolist()))


def exact(chance: float) -> Mapping[int, Sequence[float]]:
    return dict(enumerate((np.random.default_rng(0).random((64, 4)) < chance).astype(float).tolist()))


class Driven:
    """A strategy driven through iterations as the loop drives it."""

    def __init__(self, strategy: Auto | None = None, config: RunConfig | None = None) -> None:
        self.strategy = strategy or Auto()
        self.config = config or config_of()
        self.ways: dict[int, str] = {}
        """How the seeds of each iteration were chosen."""
        self._chosen_ahead = True  # a resumed run has the plan of its checkpoint

    def plain(self, iteration: int) -> SeedPlan:
        self.ways[iteration] = "plain"
        return SeedPlan(iteration, {})

    def in_window(self, iteration: int) -> Ahead:
        self.ways[iteration] = "off_policy" if self.strategy.trains_on_drafts else "stale"
        return Ahead(lambda: SeedPlan(iteration, {}))

    def on_all_devices(self, iteration: int, as_in_window: bool = False) -> SeedPlan:
        assert as_in_window and self.strategy.trains_on_drafts, "drafts that are rolled out again cost twice"
        self.ways[iteration] = "off_policy, first"
        return SeedPlan(iteration, {})

    def iterate(
        self,
        iteration: int,
        times: IterationTimes,
        scores: Mapping[int, Sequence[float]] | None = None,
        drafters: int = 2,
        drafts: int | None = None,
        figures: OffPolicyFigures | None = None,
        spread: tuple[float, float, float] | None = None,
        on_spot: int = 0,
    ) -> tuple[Note, ...]:
        """Do an iteration: the next one's seeds are chosen first, beside it."""
        if iteration == 1 or not self._chosen_ahead:
            self.strategy.before_rollout(iteration, self)
        ahead = self.strategy.ahead(iteration + 1, self)
        self._chosen_ahead = ahead is not None
        if ahead is not None:
            ahead.choose()
        seeds = SeedEvidence(
            self.config, graded() if scores is None else scores, spread, 32, 32, drafts, drafters, on_spot
        )
        return self.strategy.after_training(iteration, TrainingEvidence(figures, dict, times, seeds))


def test_it_explores_from_the_next_iteration_on_once_a_look_says_so():
    run = Driven()
    ((kind, message),) = run.iterate(1, TRAINING)
    assert kind == "strategy" and "off_policy from here on" in message and "signal per second" in message
    ((_, message),) = run.iterate(2, TRAINING)
    assert "still off_policy from here on" in message
    for iteration in (3, 4):
        assert run.iterate(iteration, TRAINING) == ()
    # No window has drafted the seeds of the second: nothing was decided when the first began.
    later = dict.fromkeys((3, 4, 5), "off_policy")
    assert run.ways == {1: "plain", 2: "off_policy, first", **later}
    assert run.strategy.decisions() == {1: "off_policy", 2: "off_policy"}


def begun(config: RunConfig) -> Driven:
    """A run of DiffusionNFT that has begun, or of the objective that is set."""
    if config.algorithm.objective == "grpo":
        config = config.changed(algorithm={"objective": "nft"})
    strategy = Auto()
    strategy.start(config)
    return Driven(strategy, config)


def test_a_graded_run_begins_as_off_policy_and_goes_on_where_it_pays():
    run = begun(config_of())
    ((_, message),) = run.iterate(1, TRAINING)
    assert message.startswith("iteration 1: still off_policy from here on")
    run.iterate(2, TRAINING)
    assert run.ways == {1: "plain", 2: "off_policy", 3: "off_policy"}


def test_evaluations_from_before_it_follows_off_policy_do_not_count_against_drafts():
    run = begun(config_of())
    run.iterate(1, TRAINING)  # rolls out, beside the drafts of the second
    falls = {
        after: {prompt: mean + 0.01 * (prompt % 2) for prompt in range(16)}
        for after, mean in ((0, 0.8), (1, 0.4))
    }
    assert run.strategy.after_training(2, TrainingEvidence(clipped(0.0), lambda: falls)) == ()
    assert run.strategy.trains_on_drafts


def test_it_ends_after_the_drafts_under_way_where_it_does_not_pay():
    """Where samples take next to no time, sixteen times as many of them are worth more than any choice."""
    run, waiting = begun(config_of(prompts=128)), replace(TRAINING, whole_s=10_000.0)
    ((_, message),) = run.iterate(1, waiting)
    assert message.startswith("iteration 1: plain from here on")
    for iteration in (2, 3):
        run.iterate(iteration, waiting)
    assert run.ways == {1: "plain", 2: "off_policy", 3: "plain"}
    assert run.strategy.decisions() == {0: "off_policy", 1: "plain", 2: "plain"}


def test_spot_devices_are_of_use_beside_training_until_it_is_known_that_drafts_do_not_pay():
    run, waiting = begun(config_of(prompts=128)), replace(TRAINING, whole_s=10_000.0)
    used = []
    for iteration in (1, 2, 3):
        run.iterate(iteration, waiting)
        used.append(run.strategy.used_beside_training(run.config.runtime))
    assert used == [math.inf, 0.0, 0.0]
    undecided = Driven()  # follows all_train until its first looks
    assert undecided.strategy.used_beside_training(run.config.runtime) == math.inf
    training = Auto()
    training.repeat({1: "all_train", 2: "all_train"}, run.config.exploration)
    runtime = run.config.runtime.model_copy(update={"trainer_workers": 3})
    assert training.used_beside_training(runtime) == runtime.spot_trainers == 2
    drafting = begun(config_of())
    for iteration in (1, 2, 3):
        drafting.iterate(iteration, TRAINING)
    assert drafting.strategy.used_beside_training(run.config.runtime) == math.inf


# A trainer takes 32 samples, as long as 64 drafts are assumed to, of which two devices make 128.
@pytest.mark.parametrize(
    ("exploration", "sections", "begins"),
    [
        ({}, {}, True),
        ({}, {"reward": {"signal": "exact"}}, False),
        ({}, {"algorithm": {"objective": "grpo-guard"}}, False),  # drafts may leave its clip range
        ({}, {"runtime": {"spot_workers": "auto"}}, False),
        ({"fidelities": ("full", "preview-3")}, {}, False),
        ({}, {"runtime": {"spot_workers": 0}}, False),
        ({"stop_with_training": False, "drafts": 128}, {}, True),
        ({"stop_with_training": False, "drafts": 129}, {}, False),
        ({"stop_with_training": False, "drafts": 129}, {"runtime": {"spot_workers": 3}}, True),
        ({"stop_with_training": False, "drafts": 129}, {"runtime": {"reserved_workers": 2}}, True),
        (
            {"stop_with_training": False, "drafts": 65},
            {"runtime": {"reserved_workers": 2, "trainer_workers": 2}},
            False,
        ),
        ({"stop_with_training": False, "drafts": 129}, {"algorithm": {"group_size": 8}}, True),
    ],
)
def test_it_begins_with_drafts_where_they_are_likely_to_hold_nothing_up(
    exploration: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]], begins: bool
):
    run = begun(config_of(**exploration).changed(**sections))
    assert run.strategy.decisions() == {0: "off_policy" if begins else "all_train"}
    run.iterate(1, TRAINING)
    assert run.ways.get(2) == ("off_policy" if begins else None)


def test_spot_devices_that_may_train_draft_first():
    for signal, train in (("graded", False), ("exact", True)):
        run = begun(with_spot_trainers().changed(reward={"signal": signal}))
        run.strategy.before_rollout(1, run)
        assert run.strategy.spot_trains is train


def test_what_a_run_began_with_is_repeated_whatever_devices_it_has_then():
    first = begun(config_of(prompts=12))
    first.iterate(1, TRAINING)
    other = begun(first.config.changed(runtime={"spot_workers": 0}))
    assert other.strategy.decisions() == {0: "all_train"} != first.strategy.decisions()
    other.strategy.repeat(first.strategy.decisions(), other.config.exploration)
    assert other.strategy.undrafted_groups(1, other.config) == 8
    other.iterate(1, TRAINING, drafters=0)
    assert other.ways == first.ways == {1: "plain", 2: "off_policy"}
    other = begun(first.config)
    other.strategy.repeat({}, other.config.exploration)  # of a new run
    assert other.strategy.decisions() == {0: "off_policy"}
    # A record from before the first decision was recorded is of a run that began without drafts.
    earlier = begun(first.config)
    earlier.strategy.repeat({1: "off_policy"}, earlier.config.exploration)
    assert earlier.strategy.undrafted_groups(1, earlier.config) == 12
    earlier.iterate(1, TRAINING)
    assert earlier.ways == {1: "plain"}


def test_a_resumed_run_follows_its_checkpoint_and_not_what_a_new_one_would_begin_with():
    run = begun(config_of().changed(reward={"signal": "exact"}))
    run.iterate(1, ROLLOUT)
    resumed = begun(config_of()).strategy
    resumed.repeat(run.strategy.decisions(), run.config.exploration)
    resumed.restore(run.strategy.state())
    assert resumed.decisions() == {0: "all_train", 1: "plain"}
    assert resumed.ahead(3, run) is None


@pytest.mark.parametrize(("signal", "first"), [("graded", 8), ("exact", 12)])
def test_without_drafts_it_trains_on_what_it_would_have_explored_but_before_a_first_window(
    signal: str, first: int
):
    config = config_of(prompts=12).changed(algorithm={"objective": "nft"}, reward={"signal": signal})
    for strategy, groups in ((Auto(), [first, 12, 12]), (Plain(), [8, 8, 8])):
        explorer = SeedExplorer(config, range(100), strategy)
        plans = [explorer.plain(iteration) for iteration in (1, 2, 3)]
        assert [len(plan.seeds) for plan in plans] == groups
        assert {len(seeds) for plan in plans for seeds in plan.seeds.values()} == {4}


def with_spot_trainers(**exploration: Any) -> RunConfig:
    """A reserved trainer, two spot devices that may train beside it, and four shards."""
    config = config_of(**exploration)
    return config.changed(runtime={"trainer_workers": 3}, algorithm={"gradient_shards": 4})


ALL_TRAIN = replace(TRAINING, train_s=52.0, whole_s=64.0)
"""One of three devices has two of the four shards: training takes half as long, plus two seconds."""


def test_spot_devices_train_where_that_brings_more_than_their_drafts():
    """With as many candidates as samples there is nothing to choose."""
    run = Driven(config=with_spot_trainers(candidates=4, fidelities=("full", "preview-3")))
    assert run.strategy.spot_trains, "as in plain, which is never better then"
    ((_, message),) = run.iterate(1, ALL_TRAIN, on_spot=2)
    # All 32 samples have contrast: 116 s, and twice the training, 220 s, without spot devices.
    assert message.startswith("iteration 1: still all_train from here on") and "all_train 1.90" in message
    notes: list[Note] = []
    for iteration in range(2, 6):
        notes += run.iterate(iteration, ALL_TRAIN, on_spot=2)
        assert run.strategy.spot_trains and run.ways[iteration] == "plain"
    assert "still all_train from here on" in notes[-1][1] and "all_train 1.90" in notes[-1][1]
    assert run.strategy.decisions() == {1: "all_train", 2: "all_train", 5: "all_train"}
    resumed = through_json(run.strategy)
    assert resumed.spot_trains and resumed.decisions() == run.strategy.decisions()


def test_spot_devices_that_train_in_vain_are_given_up_once_reserved_ones_trained_alone():
    """Communication takes as long as further devices save; in the fifth iteration none of them is there."""
    run = Driven(config=with_spot_trainers(candidates=4, fidelities=("full", "preview-3")))
    for iteration in range(1, 5):
        run.iterate(iteration, replace(TRAINING, train_s=110.0, whole_s=122.0), on_spot=2)
    run.iterate(5, TRAINING)
    assert run.strategy.decisions() == {1: "all_train", 2: "all_train", 5: "plain"}
    run.strategy.ahead(7, run)
    assert not run.strategy.spot_trains


def test_spot_devices_draft_where_that_brings_more_than_their_training():
    """Five in a hundred succeed, and the rollout takes longest."""
    times = replace(TRAINING, rollout_s=100.0, train_s=16.0, whole_s=118.0)
    run = Driven(config=with_spot_trainers(fidelities=("full", "preview-3")))
    ((_, message),) = run.iterate(1, times, exact(0.05), drafters=64)
    assert "stale from here on" in message and "all_train" in message
    run.strategy.ahead(3, run)
    assert not run.strategy.spot_trains and run.ways[3] == "stale"


def test_until_a_spot_device_is_there_it_does_as_plain_does():
    run = Driven(config=with_spot_trainers())
    ((_, message),) = run.iterate(1, TRAINING, drafters=0)
    assert message.startswith("iteration 1: still all_train from here on: no device is free")


def test_auto_alone_of_those_that_draft_beside_training_may_have_spot_trainers():
    runtime = {"reserved_workers": 1, "spot_workers": 2, "trainer_workers": 3}
    sections = {"runtime": runtime, "algorithm": {"gradient_shards": 4}, "adaptation": {"mode": "lora"}}
    for strategy in ("auto", "plain", "fresh"):
        STRATEGIES.stored(RunConfig.model_validate({**sections, "exploration": {"strategy": strategy}}))
    for strategy in ("stale", "off_policy"):
        config = RunConfig.model_validate({**sections, "exploration": {"strategy": strategy}})
        with pytest.raises(ConfigurationError, match="spot devices cannot train and draft at the same time"):
            STRATEGIES.stored(config)


def test_it_counts_what_it_would_train_on_without_drafts():
    """Where samples take next to no time, sixteen times as many of them are worth more than any choice."""
    waiting = replace(TRAINING, whole_s=10_000.0)
    decided = {}
    for prompts in (8, 128):
        run = Driven(config=config_of(prompts=prompts))
        for iteration in (1, 2):
            run.iterate(iteration, waiting)
        decided[prompts] = run.strategy.decisions()[2]
    assert decided == {8: "off_policy", 128: "plain"}


@pytest.mark.parametrize(("drafts", "predicted"), [(0, 256), (40, 40), (1000, 256)])
def test_as_many_drafts_are_predicted_as_are_allowed(drafts: int, predicted: int):
    ((_, message),) = Driven(config=config_of(drafts=drafts)).iterate(1, TRAINING)
    assert f"With about {predicted} drafts an iteration" in message


@pytest.mark.parametrize("scores", [graded(), exact(0.3)], ids=["graded", "exact"])
def test_it_stays_plain_where_no_window_holds_drafts(scores):
    run = Driven()
    said = [run.iterate(iteration, ROLLOUT, scores) for iteration in range(1, 6)]
    assert "still plain" in said[-1][0][1] and " off_policy would train on" in said[-1][0][1], (
        "the best other"
    )
    assert set(run.ways.values()) == {"plain"} and set(run.strategy.decisions().values()) == {"plain"}


def test_exact_scores_that_seldom_succeed_are_explored_by_many_devices():
    """Five in a hundred succeed, and the rollout takes longest."""
    times = replace(TRAINING, rollout_s=100.0, train_s=16.0, whole_s=118.0)
    run = Driven(config=config_of(fidelities=("full", "preview-3")))
    ((_, message),) = run.iterate(1, times, exact(0.05), drafters=64)
    assert run.strategy.decisions() == {1: "stale"}
    assert "off_policy" not in message, "cheaper drafts are no samples of the policy"


def test_they_are_not_explored_where_scorers_have_no_time_for_drafts():
    """A sample takes six seconds to judge, and the rollout's come first: ten are left for drafts."""
    judged = replace(TRAINING, judging_s=200.0, train_s=10.0, whole_s=220.0)
    run = Driven()
    run.iterate(1, judged, exact(0.05))
    assert run.strategy.decisions() == {1: "plain"}


def test_a_forecast_of_drafts_that_none_is_judged_of_is_given_up():
    run = Driven(config=config_of(fidelities=("full", "preview-3")))
    for iteration in range(1, 6):
        run.iterate(iteration, TRAINING, drafts=None if iteration < 4 else 0)
    assert run.strategy.decisions() == {1: "stale", 2: "stale", 5: "plain"}


def test_a_moment_without_a_device_to_draft_is_no_reason_to_be_plain():
    run = Driven()
    for iteration in range(1, 6):
        run.iterate(iteration, TRAINING, drafters=0 if iteration in (2, 5) else 2)
    assert set(run.strategy.decisions().values()) == {"off_policy"}


def test_without_a_device_to_draft_it_is_plain_and_says_so():
    run = Driven()
    for iteration in (1, 2):
        ((_, message),) = run.iterate(iteration, TRAINING, drafters=0)
        assert message.startswith(
            f"iteration {iteration}: still plain from here on: no device is free to draft"
        )
    alone = {"reserved_workers": 1, "spot_workers": 0, "trainer_workers": 1}
    STRATEGIES.stored(RunConfig.model_validate({"runtime": alone, "exploration": {"strategy": "auto"}}))


def test_too_few_candidates_are_refused():
    with pytest.raises(ConfigurationError, match="nothing to choose from"):
        STRATEGIES.stored(
            RunConfig.model_validate(
                {"algorithm": {"group_size": 8}, "exploration": {"strategy": "auto", "candidates": 4}}
            )
        )


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"candidates": 8, "prompts": 4, "drafts": 8}, ""), ({"prompts": 0, "drafts": 0}, ""),
        ({"candidates": 7}, "candidates is 7, below algorithm.group_size=8"),
        ({"prompts": 3}, "prompts is 3, below algorithm.prompts_per_iteration=4"),
        ({"prompts": 1}, "prompts is 1, below"), ({"drafts": 7}, "drafts is 7, below"),
        ({"drafts": 1}, "drafts is 1, below algorithm.group_size=8"),
    ],
)  # fmt: skip
def test_as_many_as_are_chosen_are_enough(settings: dict[str, int], refused: str):
    algorithm = {"group_size": 8, "prompts_per_iteration": 4}
    config = RunConfig.model_validate({"algorithm": algorithm, "exploration": settings})
    with pytest.raises(ConfigurationError, match=refused) if refused else nullcontext():
        refuse_too_few_drafts(config.exploration, config.algorithm)


def test_seeds_that_lose_their_contrast_are_given_up():
    """Rolled out again, chosen groups differ no more than random ones."""
    run = Driven(config=config_of(fidelities=("full", "preview-3")))
    slow = replace(TRAINING, train_s=100.0)
    run.iterate(1, slow)
    run.iterate(2, slow)
    assert run.strategy.decisions() == {1: "stale", 2: "stale"}
    for iteration in (3, 4, 5):
        run.iterate(iteration, slow, spread=(0.01, 0.04, 0.01) if iteration > 3 else None)
    longer = replace(slow, draft_wait_s=5.0, whole_s=117.0)
    for iteration in range(6, 11):
        run.iterate(iteration, longer, spread=(0.01, 0.04, 0.0))
    assert run.strategy.decisions()[10] == "plain"
    assert run.ways[11] == "stale", "drafts under way when it is decided are used"
    run.iterate(11, slow)
    run.iterate(12, slow)
    assert run.ways[12] == "plain"


def test_the_guard_of_off_policy_ends_it_for_the_rest_of_the_run():
    run = Driven()
    run.iterate(1, TRAINING)
    run.iterate(2, TRAINING)
    notes = [run.iterate(iteration, TRAINING, figures=clipped(0.9)) for iteration in (3, 4, 5)]
    assert [kind for kind, _ in notes[2]] == ["staleness", "strategy"]
    assert not run.strategy.trains_on_drafts
    assert "off_policy" not in notes[2][1][1]
    run.strategy.repeat({**run.strategy.decisions(), 10: "off_policy"}, run.config.exploration)
    for iteration in range(6, 11):
        run.iterate(iteration, TRAINING)
    assert run.strategy.ahead(12, run) is not None and run.ways[12] == "stale"


def clipped(share: float) -> OffPolicyFigures:
    return OffPolicyFigures(samples=1, ratio_spread=0.01, kl=0.0, clip_share=share)


def test_the_guard_judges_the_last_drafts_too_and_nothing_from_before():
    """Trained on from the fourth to the sixth iteration, and again from the twelfth on."""
    ends = Driven()
    goes_on = Driven()
    for run, share in ((ends, 0.9), (goes_on, 0.2)):
        run.strategy.repeat(
            {1: "plain", 2: "off_policy", 5: "plain", 10: "off_policy"}, run.config.exploration
        )
        notes = {
            iteration: run.iterate(
                iteration, TRAINING, figures=clipped(share) if 4 <= iteration <= 6 else None
            )
            for iteration in range(1, 12)
        }
        assert run.ways[6] == "off_policy" and run.ways[7] == "plain"
        assert [kind for kind, _ in notes[6]] == ([] if run is goes_on else ["staleness"])
    assert ends.ways[12] == "stale" and goes_on.ways[12] == "off_policy"
    # With those of the sixth iteration the mean would be 40 %.
    assert goes_on.iterate(12, TRAINING, figures=clipped(0.5)) == ()
    assert goes_on.iterate(13, TRAINING, figures=clipped(0.5)) == ()
    assert goes_on.iterate(14, TRAINING, figures=clipped(0.5))[0][0] == "staleness"


def through_json(strategy: Auto) -> Auto:
    """The strategy of a resumed run: restored from a checkpoint, and given what the record decided."""
    after = Auto()
    after.repeat(read_decisions({DECISIONS: by_iteration(strategy.decisions())}), config_of().exploration)
    after.restore(json.loads(json.dumps(strategy.state())))
    return after


def test_a_resumed_run_follows_the_record_and_decides_beyond_it():
    recorded = Driven()
    for iteration in range(1, 8):
        recorded.iterate(iteration, TRAINING)
    assert recorded.strategy.decisions() == dict.fromkeys((1, 2, 5), "off_policy")
    # Its checkpoint is from before the second look.
    early = Driven()
    for iteration in range(1, 4):
        early.iterate(iteration, TRAINING)
    early.strategy.repeat(recorded.strategy.decisions(), early.config.exploration)
    resumed = Driven(through_json(early.strategy))
    for iteration in range(4, 11):
        notes = resumed.iterate(iteration, ROLLOUT)
        if iteration == 5:
            assert "off_policy from here on, as recorded" in notes[0][1]
    assert resumed.ways == {number: "off_policy" for number in range(5, 12)}
    assert list(resumed.strategy.decisions()) == [1, 2, 5, 10]
    # The same times go on to the same decision, whether interrupted or not.
    one, other = Driven(recorded.strategy), Driven(through_json(recorded.strategy))
    for iteration in range(8, 11):
        said = [each.iterate(iteration, ROLLOUT) for each in (one, other)]
        assert said[0] == said[1]
    assert one.strategy.decisions() == other.strategy.decisions()


def test_a_decision_of_another_version_is_refused():
    with pytest.raises(ConfigurationError, match="chose 'bold' after iteration 2"):
        Auto().repeat({2: "bold"}, config_of().exploration)


def test_a_decision_that_other_settings_rule_out_is_refused():
    cheaper = config_of(fidelities=("full", "preview-3"))
    Auto().repeat({2: "stale", 5: "plain"}, cheaper.exploration)
    with pytest.raises(ConfigurationError, match=r"off_policy after iteration 5.*fidelities is .*preview-3"):
        refuse_unfit_facts({DECISIONS: "2 stale, 5 off_policy"}, cheaper.exploration)
    refuse_unfit_facts({DECISIONS: "2 stale, 5 off_policy"}, config_of().exploration)


@pytest.mark.parametrize("text", ["x", "2", "2 ", "two plain", "2 plain, "])
def test_decisions_that_cannot_be_read_are_refused(text):
    with pytest.raises(ConfigurationError, match="pairs of iteration and strategy"):
        refuse_unfit_facts({DECISIONS: text}, config_of().exploration)


def test_without_measured_times_it_decides_nothing():
    strategy = strategy_of(config_of().exploration)
    assert isinstance(strategy, Auto)
    assert strategy.after_training(2, TrainingEvidence(None, dict)) == ()
    assert strategy.after_training(2, TrainingEvidence(None, dict, TRAINING)) == (), "nor without seeds"
    assert strategy.decisions() == {}
    ((_, message),) = Driven().iterate(1, TRAINING, {})
    assert "still plain from here on: no iteration has trained on samples yet" in message


def test_chaos_refuses_a_run_whose_times_decide():
    config = RunConfig.model_validate(
        {
            "runtime": {"cluster": "ray", "history": True},
            "exploration": {"strategy": "auto", "drafts": 64, "stop_with_training": False},
        }
    )
    with pytest.raises(ConfigurationError, match="follows measured times, which faults change"):
        refuse_unfit(config.runtime, config.exploration)
