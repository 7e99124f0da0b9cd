from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_runtime.embedded_tasks.registry import find_task
from gpu_runtime.models.embedded.model import EmbeddedModel
from gpu_runtime.pretraining.flow_matching import RECIPES, Pretraining, Recipe, pretrain
from storage.errors import ConfigurationError

SMALL = Recipe(
    training_steps=50,
    sparse_training_steps=20,
    components=16,
    layers=1,
    heads=2,
    head_width=16,
    rope_axes=(4, 6, 6),
    text_width=32,
    batch_size=16,
    warmup_training_steps=4,
    codec_images=64,
)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return EmbeddedModel.load(folder).transformer.state_dict()


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_it_learns_and_repeats_to_the_bit(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    seen: list[tuple[int, int]] = []
    small = replace(SMALL, task=RECIPES[name].task, prompt_dropout=RECIPES[name].prompt_dropout)
    first = pretrain(
        name, tmp_path / "a", seed=3, recipe=small, callback=lambda done, total, _: seen.append((done, total))
    )
    torch.manual_seed(2)  # the global generator must not matter
    second = pretrain(name, tmp_path / "b", seed=3, recipe=small)
    assert first.loss_at_end < 0.97 * first.loss_at_start
    assert seen == [(step, 50) for step in range(1, 51)]
    assert (first.loss_at_start, first.loss_at_end) == (second.loss_at_start, second.loss_at_end)
    assert first.sparse_folder is not None and second.sparse_folder is not None
    for one, other in ((first.main_folder, second.main_folder), (first.sparse_folder, second.sparse_folder)):
        mine, its = weights(one), weights(other)
        assert all(torch.equal(mine[name], its[name]) for name in mine)
    assert EmbeddedModel.load(first.sparse_folder).settings.training["training_steps_done"] == 20
    brief = replace(small, training_steps=2, sparse_training_steps=1)
    losses = {pretrain(name, tmp_path / "c", seed=seed, recipe=brief).loss_at_end for seed in (3, 4)}
    assert len(losses) == 2


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown embedded model"):
        pretrain("cats", tmp_path)
    with pytest.raises(ConfigurationError, match="sparse_training_steps is 24"):
        pretrain("glyphs", tmp_path, recipe=Recipe(training_steps=24, sparse_training_steps=24))


def test_dropped_prompts_are_not_learned_from() -> None:
    def text_weights(share: float, training_steps: int) -> torch.Tensor:
        run = Pretraining(find_task("glyphs"), replace(SMALL, prompt_dropout=share), 0)
        for _ in range(training_steps):
            run.advance()
        return run.averaged_model().transformer.state_dict()["txt_in.weight"]

    untrained = text_weights(0.0, 0)
    assert torch.equal(text_weights(1.0, 3), untrained)
    assert not torch.equal(text_weights(0.5, 3), untrained)


def test_without_dropout_the_same_pictures_are_drawn_as_before_it_was_there() -> None:
    recipe, rng = replace(SMALL, batch_size=2), np.random.default_rng([0, 0])
    task, run = find_task("glyphs"), Pretraining(find_task("glyphs"), replace(SMALL, batch_size=2), 0)
    for _ in range(recipe.codec_images):
        task.render(task.draw_prompt(rng), rng)
    for _ in range(2):
        run.advance()
        for prompt in [task.draw_prompt(rng) for _ in range(2)]:
            task.render(prompt, rng)
    assert run._data.bit_generator.state == rng.bit_generator.state


def test_training_may_begin_with_another_model() -> None:
    recipe = replace(RECIPES["edits"], batch_size=4)
    start = EmbeddedModel.load(recipe.start)
    model = Pretraining(find_task("edits"), recipe, 0).averaged_model()
    assert model.settings.edits and model.settings.task == "edits"
    assert torch.equal(model.codec.basis_CD, start.codec.basis_CD)
    mine, its = model.transformer.state_dict(), start.transformer.state_dict()
    assert all(torch.equal(mine[name], its[name]) for name in its)
