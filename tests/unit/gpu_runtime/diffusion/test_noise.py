"""Philox against the published known answers, and noise as a function of identity."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gpu_runtime.diffusion.noise import NoiseStream, Purpose, integers, normal, philox4x32

STREAM = NoiseStream(run_seed=7, iteration=3, prompt_id=11, seed_index=5)
SHAPE = (4, 8)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter: str, key: str, words: str) -> None:
    def hexadecimal(text: str) -> torch.Tensor:
        return torch.tensor([[int(word, 16) for word in text.split()]])

    assert philox4x32(hexadecimal(counter), hexadecimal(key)).tolist() == hexadecimal(words).tolist()


@pytest.mark.parametrize("name", ["run_seed", "iteration", "prompt_id", "seed_index"])
def test_every_field_of_the_identity_changes_all_numbers(name: str) -> None:
    other = replace(STREAM, **{name: getattr(STREAM, name) + 1})
    one, two = normal([STREAM, other], Purpose.SDE, 2, SHAPE)
    assert not (one == two).any()


def test_fields_do_not_stand_in_for_each_other() -> None:
    swapped = NoiseStream(run_seed=3, iteration=7, prompt_id=5, seed_index=11)
    one, two = normal([STREAM, swapped], Purpose.SDE, 2, SHAPE)
    assert not (one == two).any()


def test_purpose_and_denoising_step_change_all_numbers() -> None:
    draws = [normal([STREAM], purpose, 0, SHAPE) for purpose in Purpose]
    draws += [normal([STREAM], Purpose.SDE, step, SHAPE) for step in (1, 2, 255, 256, 2**24 - 1)]
    everything = torch.cat(draws).flatten()
    assert len(everything.unique()) == len(everything)


def test_a_draw_does_not_depend_on_its_batch() -> None:
    streams = [replace(STREAM, seed_index=index) for index in range(9)]
    alone = torch.cat([normal([stream], Purpose.INITIAL, 0, SHAPE) for stream in streams])
    assert torch.equal(normal(streams, Purpose.INITIAL, 0, SHAPE), alone)
    assert torch.equal(normal(streams[::-1], Purpose.INITIAL, 0, SHAPE).flip(0), alone)
    apart = [integers([stream], Purpose.WINDOW, 1000)[0] for stream in streams]
    assert integers(streams, Purpose.WINDOW, 1000) == apart


@pytest.mark.parametrize("shape", [(1,), (3,), (5, 1), (2, 3, 7)])
def test_a_draw_has_its_shape_and_begins_alike_in_every_length(shape: tuple[int, ...]) -> None:
    drawn = normal([STREAM, STREAM], Purpose.SDE, 1, shape)
    assert drawn.shape == (2, *shape)
    assert drawn.dtype == torch.float32
    longer = normal([STREAM], Purpose.SDE, 1, (64,))[0]
    assert torch.equal(drawn[0].flatten(), longer[: drawn[0].numel()])


def test_draws_ignore_and_leave_the_global_generator() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = normal([STREAM], Purpose.SDE, 1, SHAPE)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(normal([STREAM], Purpose.SDE, 1, SHAPE), first)


def test_moments_are_those_of_a_standard_normal() -> None:
    streams = [replace(STREAM, seed_index=index) for index in range(400)]
    drawn = normal(streams, Purpose.INITIAL, 0, (1000,)).double()
    flat = drawn.flatten()
    # Four standard errors of 400 000 draws.
    assert abs(float(flat.mean())) < 0.0064
    assert float(flat.var()) == pytest.approx(1, abs=0.009)
    assert abs(float((flat**3).mean())) < 0.025
    assert float((flat**4).mean()) == pytest.approx(3, abs=0.063)
    assert float((flat.abs() < 1).double().mean()) == pytest.approx(0.6827, abs=0.003)
    # Neighbours in a draw (Box-Muller's pairs among them) and in seed are not correlated.
    assert abs(float((drawn[:, 1:] * drawn[:, :-1]).mean())) < 0.0064
    assert abs(float((drawn[1:] * drawn[:-1]).mean())) < 0.0064


def test_integers_are_even() -> None:
    streams = [replace(STREAM, seed_index=index) for index in range(3000)]
    drawn = torch.tensor(integers(streams, Purpose.WINDOW, 3))
    # 1000 expected of each, with a standard deviation of 26.
    assert torch.bincount(drawn, minlength=3).tolist() == pytest.approx([1000] * 3, abs=104)


@pytest.mark.parametrize("name", ["run_seed", "iteration", "prompt_id", "seed_index"])
@pytest.mark.parametrize("value", [-1, 2**32])
def test_fields_beyond_32_bits_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        replace(STREAM, **{name: value})


@pytest.mark.parametrize("step", [-1, 2**24])
def test_steps_beyond_24_bits_are_refused(step: int) -> None:
    with pytest.raises(ValueError, match=f"step is {step}"):
        normal([STREAM], Purpose.SDE, step, SHAPE)


@pytest.mark.parametrize("bound", [0, 2**32])
def test_bounds_out_of_range_are_refused(bound: int) -> None:
    with pytest.raises(ValueError, match=f"bound is {bound}"):
        integers([STREAM], Purpose.WINDOW, bound)
