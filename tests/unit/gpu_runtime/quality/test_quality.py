"""What images look like: each figure against a value worked out by hand."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from PIL import Image

from gpu_runtime.embedded_tasks.registry import TASKS, rendered_picture
from gpu_runtime.quality.figures import (
    brightness,
    diversity_figures,
    file_bits,
    gradient_distance,
    image_figures,
    ssim,
    truth_figures,
)
from gpu_runtime.quality.meter import QualityMeter, measured
from storage.evaluations.quality import QUALITY
from storage.prompts.files import PromptRecord, load_prompts


def grey(levels_HW: np.ndarray) -> np.ndarray:
    """The image of these brightnesses, in 256 levels."""
    return np.repeat(levels_HW.astype(np.uint8)[..., None], 3, axis=2)


def test_an_image_of_one_colour():
    figures = image_figures(grey(np.full((8, 8), 51)))
    assert figures["brightness"] == pytest.approx(0.2)
    for name in ("dark", "contrast", "edges", "colours", "grain"):
        assert figures[name] == pytest.approx(0.0, abs=1e-6), name
    assert image_figures(np.zeros((8, 8, 3), np.uint8))["dark"] == 1.0


def test_brightness_weighs_the_channels():
    red_green_blue = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]], np.uint8)
    assert brightness(red_green_blue)[0].tolist() == pytest.approx([0.299, 0.587, 0.114])


def test_two_halves_have_one_edge_one_bit_and_half_their_difference_as_contrast():
    levels = np.zeros((10, 12))
    levels[:, 6:] = 255
    figures = image_figures(grey(levels))
    assert figures["brightness"] == pytest.approx(0.5)
    assert figures["contrast"] == pytest.approx(0.5)
    assert figures["dark"] == 0.5
    # Of the 10 inner columns the two at the edge see the step, half of it each.
    assert figures["edges"] == pytest.approx(2 / 10)
    assert figures["colours"] == pytest.approx(1.0)
    assert figures["grain"] == pytest.approx(0.0, abs=1e-6), "an edge is no grain"


def test_the_grain_of_a_chessboard():
    board = np.indices((16, 16)).sum(axis=0) % 2 * 20 + 100
    # A level of +-10/255 gives a second difference of 16 times that everywhere, and no slope.
    expected = 16 * (10 / 255) * math.sqrt(math.pi / 2) / 6
    assert image_figures(grey(board))["grain"] == pytest.approx(expected, rel=1e-5)


def test_the_grain_of_normal_noise_is_its_deviation_with_and_without_edges():
    noise = np.random.default_rng(1).normal(0, 8, (200, 200))
    steps = 64 * (np.indices((200, 200))[1] // 20 % 2)  # one column in ten has an edge on each side
    for levels in (120 + noise, 90 + steps + noise):
        assert image_figures(grey(levels.round().clip(0, 255)))["grain"] == pytest.approx(8 / 255, rel=0.05)


def test_the_entropy_of_colours_counts_eight_levels_of_each_channel():
    levels = np.arange(0, 256, 32, dtype=np.uint8)
    every = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(16, 32, 3)
    assert image_figures(every)["colours"] == pytest.approx(9.0)
    assert image_figures(every | 31)["colours"] == pytest.approx(9.0), "the same levels"


def test_the_file_has_more_bits_where_there_is_more_in_the_image():
    flat = grey(np.full((32, 32), 99))
    noisy = grey(np.random.default_rng(0).integers(0, 256, (32, 32)))
    assert file_bits(noisy) > 2 * file_bits(flat)
    file = io.BytesIO()
    Image.fromarray(flat).save(file, format="JPEG", quality=90)
    assert file_bits(flat) == 8 * len(file.getvalue()) / 1024


def test_ssim_of_equal_images_of_two_greys_and_of_a_negative():
    ramp = np.linspace(0, 1, 100).reshape(10, 10)
    assert ssim(ramp, ramp) == pytest.approx(1.0)
    # Without any variance SSIM is its first factor: (2ab + C1) / (a^2 + b^2 + C1), C1 = 0.01^2.
    a, b = np.full((9, 9), 0.2), np.full((9, 9), 0.6)
    assert ssim(a, b) == pytest.approx((2 * 0.12 + 1e-4) / (0.04 + 0.36 + 1e-4))
    assert ssim(ramp, 1 - ramp) < 0


def test_the_distance_of_gradients_of_two_ramps():
    ramp = np.arange(16)[None, :] * np.ones((16, 1))
    # 0.01 a pixel across at full size, 0.02 at half, 0.04 at a quarter; nothing downwards.
    assert gradient_distance(0.01 * ramp, 0 * ramp) == pytest.approx((0.01 + 0.02 + 0.04) / 2 / 3)
    assert gradient_distance(ramp, ramp + 7) == pytest.approx(0.0), "brightness alone is no edge"


@pytest.mark.parametrize("name", sorted(TASKS))
def test_the_truth_of_a_rendered_image_is_that_image(name: str):
    task, rng = TASKS[name], np.random.default_rng(5)
    for prompt in load_prompts(f"builtin:{name}-evaluate")[:40]:
        image = task.render(prompt, rng)
        truth = task.nearest_picture(prompt, image)
        assert (truth.image_HWC == image).all(), prompt
        assert 0 < truth.drawn_HW.mean() < 1
        figures = {key: value for key, value in measured(image, prompt).items() if key.startswith("truth_")}
        assert figures and max(map(abs, figures.values())) < 1e-9


def test_the_truth_is_the_nearest_of_all_pictures():
    include = [{"class": "circle", "count": 1}, {"class": "cross", "count": 1}]
    prompt = PromptRecord(0, "a circle and a cross", {"include": include})
    task, rng = TASKS["shapes"], np.random.default_rng(6)
    image = np.clip(task.render(prompt, rng) + rng.normal(0, 60, (32, 32, 3)), 0, 255).astype(np.uint8)

    def distance(picture: np.ndarray) -> float:
        return float(((picture.astype(float) - image) ** 2).sum())

    found = distance(task.nearest_picture(prompt, image).image_HWC)
    assert found <= min(distance(task.render(prompt, rng)) for _ in range(400))
    # Of one shape there are so few pictures that 3000 draws have the nearest one among them.
    one = PromptRecord(0, "a circle", {"include": include[:1]})
    found = distance(task.nearest_picture(one, image).image_HWC)
    assert found == min(distance(task.render(one, rng)) for _ in range(3000))


def test_background_and_glyphs_are_apart():
    prompt = PromptRecord(0, 'a red sign that says "K7A"')
    task = TASKS["glyphs"]
    image = task.render(prompt, np.random.default_rng(0))
    truth = task.nearest_picture(prompt, image)
    moved = image.copy()
    moved[~truth.drawn_HW] += 10
    figures = truth_figures(moved, truth)
    assert figures["truth_background"] == pytest.approx(10 / 255)
    assert figures["truth_drawn"] == 0.0
    assert figures["truth_distance"] > 0


def test_no_task_knows_another_size_or_another_prompt():
    sign = PromptRecord(0, 'a red sign that says "K7A"')
    assert rendered_picture(sign, np.zeros((64, 96, 3), np.uint8)) is None
    assert rendered_picture(PromptRecord(0, "a dog"), np.zeros((32, 48, 3), np.uint8)) is None
    assert rendered_picture(PromptRecord(0, "a dog"), np.zeros((32, 32, 3), np.uint8)) is None


def test_diversity_is_the_distance_to_the_others():
    points = [[0.0, 0.0], [3.0, 4.0], [0.0, 8.0]]
    found = diversity_figures([np.array(point) for point in points], [0, 0, 1])
    root = math.sqrt(2)  # of two values each
    assert found[0] == pytest.approx({"diversity_within": 5 / root, "diversity_across": 8 / root})
    assert found[1] == pytest.approx({"diversity_within": 5 / root, "diversity_across": 5 / root})
    assert found[2] == pytest.approx({"diversity_across": math.sqrt((64 + 25) / 2 / 2)})
    assert diversity_figures([np.zeros(4)], [0]) == [{}]
    assert diversity_figures([], []) == []


def test_the_meter_gives_every_image_its_figures_in_the_order_asked():
    prompts = {number: prompt for number, prompt in enumerate(load_prompts("builtin:glyphs-evaluate")[:2])}
    rng = np.random.default_rng(0)
    images = {number: TASKS["glyphs"].render(prompt, rng) for number, prompt in prompts.items()}
    with QualityMeter(prompts) as meter:
        for number in (1, 0):
            meter.add(number, 0, images[number])
        found = meter.figures([(number, 0, np.full(3, float(number))) for number in (0, 1)])
    for number in (0, 1):
        assert image_figures(images[number]).items() <= found[number].items()
        assert found[number]["diversity_across"] == pytest.approx(1.0)
        assert found[number]["truth_distance"] == pytest.approx(0.0, abs=1e-9)
        assert found[number].keys() <= QUALITY.keys(), "every figure can be shown"
