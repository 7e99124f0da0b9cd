"""The optimiser step against gradients worked row by row; its batches, its average, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gpu_runtime.diffusion.sde_step import StepTimes, Transition, log_prob, transition
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.learning.trainer import MovingAverage
from gpu_runtime.learning.weights import weights_digest
from gpu_runtime.models.protocol import Conditioning
from storage.config.run_config import RunConfig
from storage.errors import TrainingError
from tests.tiny_model import TinyModel
from tests.tiny_run import (
    OBJECTIVE_NAMES,
    TinyRun,
    assert_same_gradients,
    mean_gradients,
    shuffled,
    tiny_config,
    train_and_catch_gradients,
)

MODES = ["lora", "full"]


def config(mode: str = "full", **sections: dict[str, Any]) -> RunConfig:
    return tiny_config(adaptation={"mode": mode}, **sections)


def digest_of(run: TinyRun) -> str:
    return weights_digest(run.policy.state())


def row_policy(model: TinyModel, sample: TrainingSample, place: int, settings: RunConfig) -> Transition:
    """The policy of one stochastic step of one sample, computed alone."""
    trajectory, sampling = sample.trajectory, settings.sampling
    step = torch.from_numpy(trajectory.step_W[place : place + 1])
    times = StepTimes.at(model.sigmas(sampling.rollout_steps), step)
    before = torch.from_numpy(trajectory.before_WSC[place : place + 1])
    velocity = model.velocity(before, times.sigma_B, model.encode_prompts([sample.request.prompt]))
    return transition(sampling.sde, before, velocity, times, torch.tensor([sampling.noise_level]))


def rows_of(samples: list[TrainingSample]) -> list[tuple[TrainingSample, int]]:
    return [(sample, place) for sample in samples for place in range(len(sample.trajectory.step_W))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["flow", "cps"])
def test_ratio_is_one_at_the_first_update_of_every_iteration(mode: str, kind: str) -> None:
    run = TinyRun(config(mode, sampling={"sde": kind}))
    for iteration in (1, 2, 3):
        report = run.trainer.train(run.rollout(iteration))
        assert report.ratio_deviation <= 1e-6
        assert (report.ratio_mean, report.approx_kl) == (pytest.approx(1), pytest.approx(0, abs=1e-9))
        assert report.training_steps == 1
        assert report.gradient_norm > 0


@pytest.mark.parametrize("size", [4, 5, 16])
def test_gradient_is_the_mean_over_rows_of_minus_a_times_that_of_log_p(size: int) -> None:
    # 12 rows: three full batches, two and a part, or one that is mostly padding.
    settings = config(sampling={"batch_size": size}, optimizer={"max_grad_norm": 1e6})
    run = TinyRun(settings)
    run.perturb()
    samples = run.rollout()

    def row_loss(sample: TrainingSample, place: int) -> torch.Tensor:
        after = torch.from_numpy(sample.trajectory.after_WSC[place : place + 1])
        policy = row_policy(run.model, sample, place, settings)
        return -sample.advantage * log_prob(settings.sampling.sde, after, policy)

    expected = mean_gradients(run, (row_loss(*row) for row in rows_of(samples)))
    (found,) = train_and_catch_gradients(run, samples)
    assert_same_gradients(found, expected)


@pytest.mark.parametrize("mode", MODES)
def test_kl_adds_beta_times_its_gradient(mode: str) -> None:
    beta = 3.0
    settings = config(mode, algorithm={"kl_weight": beta}, optimizer={"max_grad_norm": 1e6})
    run, reference_model = TinyRun(settings), TinyModel()
    run.perturb()
    samples = run.rollout()
    kls: list[float] = []

    def row_loss(sample: TrainingSample, place: int) -> torch.Tensor:
        after = torch.from_numpy(sample.trajectory.after_WSC[place : place + 1])
        policy = row_policy(run.model, sample, place, settings)
        with torch.no_grad():
            reference = row_policy(reference_model, sample, place, settings)
        kl = ((policy.mean_BSC - reference.mean_BSC) ** 2).mean() / (2 * policy.s_B**2)
        kls.append(float(kl.detach()))
        return -sample.advantage * log_prob(settings.sampling.sde, after, policy) + beta * kl

    expected = mean_gradients(run, (row_loss(*row) for row in rows_of(samples)))
    (found,) = train_and_catch_gradients(run, samples)
    assert_same_gradients(found, expected)
    assert np.mean(kls) > 1e-5

    twin = TinyRun(settings)
    twin.perturb()
    report = twin.trainer.train(samples)
    assert report.kl == pytest.approx(np.mean(kls), rel=1e-4)
    # At ratio 1 the loss is the mean of -A: -(1 - 1 + 0.5 - 0.25 - 2 + 1.5) / 6.
    assert report.loss == pytest.approx(0.25 / 6, abs=1e-6)
    assert report.clip_share == 0


@pytest.mark.parametrize("mode", MODES)
def test_kl_is_zero_before_any_training(mode: str) -> None:
    run, without = TinyRun(config(mode, algorithm={"kl_weight": 1.0})), TinyRun(config(mode))
    samples = run.rollout()
    assert run.trainer.train(samples).kl == 0
    assert without.trainer.train(samples).kl == 0
    assert digest_of(run) == digest_of(without)


@pytest.mark.parametrize("objective", OBJECTIVE_NAMES)
@pytest.mark.parametrize("mode", MODES)
def test_order_of_samples_does_not_change_a_bit_of_the_weights(mode: str, objective: str) -> None:
    algorithm = {"objective": objective, "updates_per_iteration": 2, "kl_weight": 0.5}
    settings = config(mode, algorithm=algorithm)
    untrained = digest_of(TinyRun(settings))
    digests = set()
    for seed in range(3):
        run = TinyRun(settings)
        report = run.trainer.train(shuffled(run.rollout(), seed))
        assert (report.training_steps, report.ratio_deviation) == (2, pytest.approx(0, abs=1e-6))
        digests.add(digest_of(run))
    assert len(digests) == 1
    assert untrained not in digests


def test_training_raises_the_probability_of_what_had_an_advantage() -> None:
    settings = config(optimizer={"learning_rate": 1e-4})
    run = TinyRun(settings)
    samples = run.rollout()
    run.trainer.train(samples)
    gain = 0.0
    for sample in samples:
        for place, old in enumerate(sample.trajectory.log_prob_W):
            with torch.no_grad():
                policy = row_policy(run.model, sample, place, settings)
                after = torch.from_numpy(sample.trajectory.after_WSC[place : place + 1])
                gain += sample.advantage * float(log_prob("flow", after, policy) - float(old))
    assert gain > 0


@pytest.mark.parametrize("objective", OBJECTIVE_NAMES)
@pytest.mark.parametrize("mode", MODES)
def test_trajectories_of_other_weights_are_refused_and_nothing_changes(mode: str, objective: str) -> None:
    run = TinyRun(config(mode, algorithm={"objective": objective, "updates_per_iteration": 2}))
    samples = run.rollout()
    run.perturb()
    before = digest_of(run)
    with pytest.raises(TrainingError, match="probability ratio"):
        run.trainer.train(samples)
    assert digest_of(run) == before
    assert all(weight.grad is None for weight in run.policy.trained.values())
    assert run.trainer.average.training_steps == 0


def test_a_log_prob_that_is_no_number_is_refused() -> None:
    run = TinyRun(config())
    samples = run.rollout()
    broken = replace(samples[-1].trajectory, log_prob_W=np.full(2, np.nan, np.float32))
    before = digest_of(run)
    with pytest.raises(TrainingError, match=r"probability ratio.* nan"):
        run.trainer.train([*samples[:-1], replace(samples[-1], trajectory=broken)])
    assert digest_of(run) == before


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("updates", [1, 3])
def test_an_advantage_that_is_not_finite_is_refused_and_nothing_changes(bad: float, updates: int) -> None:
    # The bad sample belongs to the last prompt, and so to the last of the updates.
    settings = config(algorithm={"updates_per_iteration": updates})
    run, untouched = TinyRun(settings), TinyRun(settings)
    samples = run.rollout()
    before = digest_of(run)
    with pytest.raises(TrainingError, match="finite"):
        run.trainer.train([*samples[:-1], replace(samples[-1], advantage=bad)])
    assert digest_of(run) == before
    run.trainer.train(samples)
    untouched.trainer.train(samples)
    assert digest_of(run) == digest_of(untouched), "the refused samples left something behind"


def test_a_gradient_that_is_not_finite_is_refused_and_nothing_changes() -> None:
    run = TinyRun(config())
    samples = run.rollout()
    before = digest_of(run)
    weight = next(iter(run.policy.trained.values()))
    hook = weight.register_hook(lambda grad: grad * math.inf)
    with pytest.raises(TrainingError, match="gradient"):
        run.trainer.train(samples)
    hook.remove()
    assert digest_of(run) == before
    assert not run.trainer.optimizer.state


def test_an_iteration_is_divided_over_its_updates_by_whole_groups() -> None:
    settings = config(algorithm={"updates_per_iteration": 2}, optimizer={"max_grad_norm": 1e6})
    run = TinyRun(settings)
    samples = run.rollout()
    caught = train_and_catch_gradients(run, samples)
    assert len(caught) == 2
    assert run.trainer.average.training_steps == 2
    # Two of the three groups make the first update.
    alone = TinyRun(config(optimizer={"max_grad_norm": 1e6}))
    first = [sample for sample in samples if sample.request.prompt_id in (0, 2)]
    (expected,) = train_and_catch_gradients(alone, first)
    assert_same_gradients(caught[0], expected)


def test_later_updates_may_leave_ratio_one_and_are_clipped() -> None:
    settings = config(
        algorithm={"updates_per_iteration": 3, "options": {"clip_range": 1e-5}},
        optimizer={"learning_rate": 1e-2},
    )
    run = TinyRun(settings)
    report = run.trainer.train(run.rollout())
    assert report.training_steps == 3
    assert report.ratio_deviation <= 1e-6
    assert report.clip_share > 0
    assert report.ratio_mean != 1 and report.approx_kl > 0


def test_updates_are_never_empty() -> None:
    run = TinyRun(config(algorithm={"updates_per_iteration": 3}))
    one_group = [sample for sample in run.rollout() if sample.request.prompt_id == 1]
    assert run.trainer.train(one_group).training_steps == 1


def test_no_samples_no_training_step() -> None:
    run = TinyRun(config())
    before = digest_of(run)
    report = run.trainer.train([])
    assert (report.training_steps, report.loss, report.gradient_norm, report.ratio_deviation) == (0, 0, 0, 0)
    assert report.ratio_mean == 0
    assert digest_of(run) == before


def test_gradients_are_clipped_to_their_norm() -> None:
    run = TinyRun(config(optimizer={"max_grad_norm": 0.01}))
    (caught,) = train_and_catch_gradients(run, run.rollout())
    assert math.sqrt(sum(float(grad.norm()) ** 2 for grad in caught.values())) == pytest.approx(
        0.01, rel=1e-4
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_restored_trainer_goes_on_to_the_same_bits(mode: str) -> None:
    settings = config(mode, algorithm={"kl_weight": 0.5}, optimizer={"ema_interval": 2})
    whole = TinyRun(settings)
    whole.trainer.train(whole.rollout(1))
    blobs = whole.trainer.blobs()
    resumed = TinyRun(settings)
    resumed.trainer.restore(blobs)
    for iteration in (2, 3):
        for run in (whole, resumed):
            run.trainer.train(run.rollout(iteration))
    assert digest_of(resumed) == digest_of(whole)
    assert weights_digest(resumed.trainer.average.state) == weights_digest(whole.trainer.average.state)


def test_the_learning_rate_rises_evenly_over_the_warm_up_and_after_a_restore() -> None:
    settings = config(optimizer={"learning_rate": 1e-3, "warmup_steps": 4})
    run = TinyRun(settings)
    rates = []
    for iteration in range(1, 4):
        run.trainer.train(run.rollout(iteration))
        rates.append(run.trainer.optimizer.param_groups[0]["lr"])
    restored = TinyRun(settings)
    restored.trainer.restore(run.trainer.blobs())
    for iteration in range(4, 7):
        restored.trainer.train(restored.rollout(iteration))
        rates.append(restored.trainer.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def one_by_one(run: TinyRun, samples: Sequence[TrainingSample]) -> None:
    """Prompt groups in their order; samples of a group in any."""
    for prompt in sorted({sample.request.prompt_id for sample in samples}):
        run.trainer.add(shuffled([s for s in samples if s.request.prompt_id == prompt], prompt))


@pytest.mark.parametrize("objective", OBJECTIVE_NAMES)
@pytest.mark.parametrize("updates", [1, 2, 3])
@pytest.mark.parametrize("size", [4, 8])
def test_a_group_at_a_time_gives_the_bits_of_all_at_once(objective: str, updates: int, size: int) -> None:
    algorithm = {"objective": objective, "updates_per_iteration": updates, "kl_weight": 0.5}
    settings = tiny_config(algorithm=algorithm, sampling={"batch_size": size})
    at_once, parts = TinyRun(settings), TinyRun(settings)
    samples = at_once.rollout()
    report = at_once.trainer.train(samples)
    parts.trainer.begin()
    one_by_one(parts, samples[:2])
    parts.trainer.begin()  # an iteration that does not come to its end leaves nothing behind
    one_by_one(parts, samples)
    assert parts.trainer.finish() == report
    assert parts.trainer.blobs() == at_once.trainer.blobs()


def test_gradients_are_there_before_the_last_group_has_come_and_weights_stay() -> None:
    run = TinyRun(tiny_config())
    samples, before = run.rollout(), run.trainer.blobs()
    run.trainer.begin()
    run.trainer.add(samples[:2])
    assert any(weight.grad is not None for weight in run.policy.trained.values())
    assert run.trainer.blobs() == before


def test_groups_out_of_their_order_are_a_defect() -> None:
    run = TinyRun(tiny_config())
    samples = run.rollout()
    run.trainer.begin()
    run.trainer.add(samples[2:])
    with pytest.raises(AssertionError, match="order of their prompts"):
        run.trainer.add(samples[:2])


@pytest.mark.parametrize("objective", OBJECTIVE_NAMES)
def test_weights_that_changed_since_the_gradients_were_added_are_refused(objective: str) -> None:
    run = TinyRun(tiny_config(algorithm={"objective": objective}))
    samples = run.rollout()
    run.trainer.begin()
    run.perturb()
    run.trainer.add(samples)
    with pytest.raises(TrainingError, match="probability ratio"):
        run.trainer.finish()


def weights(*values: float) -> dict[str, np.ndarray]:
    """A state of one tensor."""
    return {"w": np.array(values, np.float32)}


def test_first_updates_forget_fast() -> None:
    # Decays 2/11 and 3/12: 0 * 2/11 + 11 * 9/11 = 9, then 9 * 0.25 + 5 * 0.75 = 6.
    average = MovingAverage(weights(0, 0), decay=0.9, interval=1)
    average.update(lambda: weights(11, 0))
    assert average.state["w"].tolist() == pytest.approx([9, 0], abs=1e-6)
    average.update(lambda: weights(5, 0))
    assert average.state["w"].tolist() == pytest.approx([6, 0], abs=1e-6)


def test_decay_is_the_upper_limit() -> None:
    average = MovingAverage(weights(1), decay=0.1, interval=1)
    average.update(lambda: weights(11))  # 0.1 * 1 + 0.9 * 11
    assert average.state["w"].tolist() == pytest.approx([10], abs=1e-6)


def test_decay_zero_is_the_weights_themselves() -> None:
    average = MovingAverage(weights(3), decay=0.0, interval=1)
    average.update(lambda: weights(0.1))
    assert np.array_equal(average.state["w"], weights(0.1)["w"])


def test_only_every_interval_moves_the_average() -> None:
    # Only the third training step counts, as the first update: 0 * 2/11 + 11 * 9/11.
    average = MovingAverage(weights(0), decay=0.9, interval=3)

    def unread() -> dict[str, np.ndarray]:
        raise AssertionError("copies weights that are not needed")

    for _ in range(2):
        average.update(unread)
        assert average.state["w"].tolist() == [0]
    average.update(lambda: weights(11))
    assert average.state["w"].tolist() == pytest.approx([9], abs=1e-6)
    assert average.training_steps == 3


@pytest.mark.parametrize(("decay", "begins"), [(0.0, None), (0.9, 3)])
def test_weights_themselves_are_the_result_until_the_average_begins(decay: float, begins: int | None) -> None:
    settings = config(optimizer={"ema_decay": decay, "ema_interval": 3})
    run = TinyRun(settings)
    for step in range(5):
        state = run.trainer.average_state()
        if begins is None or step < begins:
            assert state is None
        else:
            assert state is not None
            assert weights_digest(state) == weights_digest(run.trainer.average.state)
        run.trainer.train(run.rollout(step + 1))
        resumed = TinyRun(settings)
        resumed.trainer.restore(run.trainer.blobs())
        run = resumed


def test_average_shares_no_memory_with_what_it_was_given() -> None:
    start, loaded = weights(1), weights(2)
    average = MovingAverage(start, decay=0.5, interval=1)
    average.update(lambda: weights(5))
    assert start["w"].tolist() == [1]
    average.load(loaded, training_steps=0)
    average.update(lambda: weights(5))
    assert loaded["w"].tolist() == [2]


def test_offloaded_encoders_are_fetched_once_for_all_prompts_of_an_iteration(monkeypatch: pytest.MonkeyPatch):
    settings = config(model={"encoders": "offload"}, sampling={"batch_size": 4})
    samples, run = TinyRun(settings).rollout(), TinyRun(settings)
    asked: list[list[str]] = []
    encode = run.model.encode_prompts

    def counted(prompts: Sequence[str]) -> Conditioning:
        asked.append(list(prompts))
        return encode(prompts)

    monkeypatch.setattr(run.model, "encode_prompts", counted)
    run.trainer.train(samples)
    assert len(asked) == 1 and len(asked[0]) == len({one.request.prompt_id for one in samples}) > 1
