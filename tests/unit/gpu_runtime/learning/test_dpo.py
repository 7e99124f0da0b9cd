"""Diffusion-DPO: its pairs, its loss by hand, its gradients pair by pair."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from gpu_runtime.learning.objectives.dpo import dpo_loss, pairs_of
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.learning.registry import keeps_reference, passes_reference, rows_of_sample
from storage.config.run_config import RunConfig
from tests.tiny_run import (
    TinyRun,
    assert_same_gradients,
    mean_gradients,
    noised_row,
    of_update,
    request,
    tiny_config,
    train_and_catch_gradients,
)

TIMES, BETA = 3, 40.0


def config(updates: int = 1, mode: str = "full", kl_weight: float = 0.0, size: int = 4) -> RunConfig:
    options = {"times": TIMES, "beta": BETA, "pairs": 2}
    return tiny_config(
        adaptation={"mode": mode},
        algorithm={
            "objective": "dpo",
            "options": options,
            "updates_per_iteration": updates,
            "kl_weight": kl_weight,
        },
        optimizer={"learning_rate": 1e-2, "max_grad_norm": 1e6},
        sampling={"batch_size": size},
    )


def group(prompt: int, *advantages: float) -> list[TrainingSample]:
    """A prompt group with these advantages, by seed."""
    sample = TinyRun(tiny_config()).rollout()[0]
    return [
        replace(sample, request=request(prompt, seed), advantage=advantage)
        for seed, advantage in enumerate(advantages)
    ]


def seeds(samples: Sequence[TrainingSample], most: int) -> list[tuple[int, int, int]]:
    """Prompt, winner and loser of each pair."""
    pairs = pairs_of(samples, most)
    return [
        (winner.request.prompt_id, winner.request.seed_index, loser.request.seed_index)
        for winner, loser in pairs
    ]


@pytest.mark.parametrize(
    ("advantages", "most", "expected"),
    [
        ((0.5, -1.0, 1.5, -1.0, 0.0), 1, [(2, 3)]),
        ((0.5, -1.0, 1.5, -1.0, 0.0), 2, [(2, 3), (0, 1)]),
        # The fifth is the middle one: it has no partner.
        ((0.5, -1.0, 1.5, -1.0, 0.0), 9, [(2, 3), (0, 1)]),
        # The second best is as bad as the second worst.
        ((-0.6, 1.7, -0.6, -0.6), 2, [(1, 3)]),
        ((0.0, 0.0, 0.0), 2, []),
    ],
)
def test_the_best_are_paired_with_the_worst(
    advantages: tuple[float, ...], most: int, expected: list[tuple[int, int]]
) -> None:
    assert seeds(group(1, *advantages), most) == [(1, *pair) for pair in expected]


def test_no_pair_is_of_two_prompts() -> None:
    samples = [*group(0, 1.0, -1.0), *group(1, 0.0, 0.0), *group(2, -2.0, 2.0)]
    assert seeds(samples, 4) == [(0, 0, 1), (2, 1, 0)]


def rows_of(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers)[:, None, None]


def test_loss_margin_and_gradient_of_one_number_by_hand() -> None:
    # Winner: v = 2, v_ref = 1.5, u = 1: d = 1 - 0.25 = 0.75. Loser: v = 0.5, v_ref = 0, u = -1:
    # d = 2.25 - 1 = 1.25. With beta = 4 the margin is 2 (1.25 - 0.75) = 1, and the loss log(1 + 1/e).
    velocity = rows_of(2.0, 0.5).requires_grad_()
    terms = dpo_loss(velocity, rows_of(1.5, 0.0), rows_of(1.0, -1.0), 4.0)
    terms.loss_R.mean().backward()
    assert velocity.grad is not None and terms.margin_R is not None
    assert terms.loss_R.tolist() == pytest.approx([0.3132617] * 2, abs=1e-6)
    assert terms.margin_R.tolist() == pytest.approx([1.0] * 2, abs=1e-6)
    # -sigmoid(-1) times the margin's slopes, -beta (v - u) of the winner and beta (v - u) of the loser.
    assert velocity.grad.flatten().tolist() == pytest.approx([0.2689414 * 4, -0.2689414 * 6], abs=1e-5)


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(4, 3, 2, generator=generator, dtype=torch.float64) for _ in range(3)]
    velocity, reference, target = drawn

    def mean_loss(moved: torch.Tensor) -> torch.Tensor:
        return dpo_loss(moved, reference, target, 2.0).loss_R.mean()

    assert torch.autograd.gradcheck(mean_loss, velocity.requires_grad_())


def test_accuracy_and_margin_are_means_over_pairs_that_count() -> None:
    # Margins 1 and -3 with beta = 2, and one of a pair that pads the batch.
    terms = dpo_loss(rows_of(0, 1, 0, 0, 0, 9), rows_of(0, 0, 0, math.sqrt(3), 0, 0), rows_of(*[0.0] * 6), 2)
    weights = torch.tensor([1.0, 1, 1, 1, 0, 0])
    found = terms.batch_terms(weights, torch.zeros(()))
    assert found.pair_accuracy / 4 == 0.5
    assert found.pair_margin / 4 == pytest.approx(-1, abs=1e-6)
    expected = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(3))) / 2
    assert found.loss / 4 == pytest.approx(expected, abs=1e-6)


def pair_losses(
    run: TinyRun, chosen: list[TrainingSample], reference: TinyRun, kl_weight: float = 0.0
) -> Iterator[torch.Tensor]:
    """Each pair alone in float64, from the definition; the groups have two samples."""
    for prompt in sorted({sample.request.prompt_id for sample in chosen}):
        both = [sample for sample in chosen if sample.request.prompt_id == prompt]
        winner, loser = sorted(both, key=lambda sample: sample.advantage, reverse=True)
        for place in range(TIMES):
            moved, distance = [], []
            for sample in (winner, loser):
                row = noised_row(run, sample, place, TIMES, shared=True)
                asked = (row.latents_BSC, row.sigma_B, row.prompt)
                velocity = run.model.velocity(*asked).double()
                with torch.no_grad():
                    expected = reference.model.velocity(*asked).double()
                errors = (((each - row.target_BSC) ** 2).mean() for each in (velocity, expected))
                moved.append(next(errors) - next(errors))
                distance.append(((velocity - expected) ** 2).mean())
            loss = -torch.log(torch.sigmoid(BETA / 2 * (moved[1] - moved[0])))
            yield loss + kl_weight * (distance[0] + distance[1]) / 2


@pytest.mark.parametrize("size", [4, 6, 16])
@pytest.mark.parametrize("kl_weight", [0.0, 0.5])
@pytest.mark.parametrize("mode", ["full", "lora"])
def test_gradients_of_both_updates_are_those_of_their_pairs(mode: str, kl_weight: float, size: int) -> None:
    settings, half = config(2, mode, kl_weight, size), config(1, mode, kl_weight, size)
    run, first, reference = TinyRun(settings), TinyRun(half), TinyRun(half)
    for each in (run, first):
        each.perturb()  # away from the reference
    samples = run.rollout()
    at_once, later = of_update(samples, 0, 2), of_update(samples, 1, 2)
    expected = mean_gradients(first, pair_losses(first, at_once, reference, kl_weight))
    found = train_and_catch_gradients(run, samples)
    assert_same_gradients(found[0], expected)
    first.trainer.train(at_once)
    assert_same_gradients(found[1], mean_gradients(first, pair_losses(first, later, reference, kl_weight)))


def test_older_samples_are_pairs_like_any_others() -> None:
    run, untouched = TinyRun(config()), TinyRun(config())
    samples = [replace(sample, stale=True) for sample in run.rollout()]
    moved = TinyRun(config())
    for each in (run, moved):
        each.perturb()
    expected = mean_gradients(moved, pair_losses(moved, samples, untouched))
    assert_same_gradients(train_and_catch_gradients(run, samples)[0], expected)


def test_training_tells_more_and_more_pairs_apart() -> None:
    run = TinyRun(config())
    samples = [replace(sample, stale=True) for sample in run.rollout()]
    reports = [run.trainer.train(samples) for _ in range(4)]
    # It begins as the reference, which prefers no image to itself.
    assert (reports[0].pair_accuracy, reports[0].pair_margin, reports[0].kl) == (0.5, 0, 0)
    assert reports[0].loss == pytest.approx(math.log(2), abs=1e-6)
    margins = [report.pair_margin for report in reports]
    assert margins == sorted(margins) and margins[1] > 0
    assert reports[-1].pair_accuracy > 0.8
    assert reports[-1].kl > 0


def test_groups_without_contrast_change_nothing() -> None:
    one, other = TinyRun(config()), TinyRun(config())
    samples = one.rollout()
    equal = [replace(s, advantage=0.0) if s.request.prompt_id == 1 else s for s in samples]
    one.trainer.train(equal)
    other.trainer.train([sample for sample in samples if sample.request.prompt_id != 1])
    assert one.trainer.blobs() == other.trainer.blobs()


@pytest.mark.parametrize(
    ("size", "most", "rows"), [(16, 4, 2.5), (16, 64, 5.0), (3, 4, 10 / 3), (2, 1, 5.0)]
)  # two rows a pair and noise level, of which there are five
def test_rows_of_a_sample(size: int, most: int, rows: float) -> None:
    settings = tiny_config(
        algorithm={"objective": "dpo", "group_size": size, "options": {"pairs": most, "times": 5}}
    )
    assert rows_of_sample(settings.sampling, settings.algorithm) == pytest.approx(rows)


def test_the_reference_is_kept_without_a_kl() -> None:
    for objective, kl_weight, needed in (("dpo", 0.0, True), ("nft", 0.0, False), ("nft", 0.1, True)):
        settings = tiny_config(algorithm={"objective": objective, "kl_weight": kl_weight})
        assert (
            keeps_reference(settings.algorithm, settings.evaluation)
            == passes_reference(settings.algorithm)
            == needed
        )
