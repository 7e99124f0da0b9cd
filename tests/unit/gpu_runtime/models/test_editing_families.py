"""The families that edit: what of an image reaches the transformer, and what is refused.

`tests/unit/gpu_runtime/models/test_families.py` compares them with their own pipelines.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_runtime.models.loading import load_model, outline_model
from gpu_runtime.models.protocol import EditingModel
from gpu_runtime.models.registry import FAMILIES
from storage.errors import ConfigurationError, ModelError
from storage.prompts.sources import read_source
from tests.pipeline_reference import EDITING, EXACT, OPTIONS, PROMPTS, SOURCES, family_config, source_of
from tests.tiny_pipelines import SIDE, Saved, save_pipeline

PAIR = [read_source(source) for source in SOURCES[:2]]


def images_of(family: str) -> int:
    """Images of a prompt."""
    return OPTIONS.get(family, {}).get("images", 1)


def pair_of(family: str) -> list[np.ndarray]:
    """What the first two prompts of a family come with."""
    return [read_source(source_of(family, number)) for number in range(2)]


@pytest.mark.parametrize("family", EDITING)
def test_the_image_changes_what_is_predicted(saved: Saved, family: str):
    model = load_model(family_config(family, saved(family)).model)
    assert isinstance(model, EditingModel)
    one, other = (model.encode_edits(PROMPTS[:1], [image]) for image in pair_of(family))
    sees = family.startswith("qwen-image-edit")
    assert torch.equal(one.embeds_BLE, other.embeds_BLE) == (not sees)
    assert (one.negative is not None) == sees
    assert one.source_BZC is not None and other.source_BZC is not None
    tokens, channels = model.latent_shape
    assert one.source_BZC.shape == (1, images_of(family) * tokens, channels)
    assert not torch.equal(one.source_BZC, other.source_BZC)
    latents = torch.randn(1, *model.latent_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first, second = (model.velocity(latents, torch.tensor([0.5]), rows) for rows in (one, other))
    assert first.shape == latents.shape
    assert (first - second).abs().max() > 20 * EXACT
    with pytest.raises(ConfigurationError, match="edits an image, and a prompt has none"):
        model.encode_prompts(PROMPTS[:1])


@pytest.mark.parametrize("family", EDITING)
def test_its_sequence_is_known_before_a_run(saved: Saved, family: str):
    config = family_config(family, saved(family)).model
    outline, model = outline_model(config), load_model(config)
    assert outline.sequence_lengths() == model.sequence_lengths()
    own = (SIDE // 4) ** 2
    count = images_of(family)
    seen = {"qwen-image-edit": 4, "qwen-image-edit-plus": count}.get(family, 0)
    assert model.sequence_lengths() == ((1 + count) * own, config.text_length + seen)
    assert isinstance(model, EditingModel)
    rows = model.encode_edits(PROMPTS[:1], pair_of(family)[:1])
    assert rows.embeds_BLE.shape[1] == model.sequence_lengths()[1]
    with pytest.raises(ConfigurationError, match=r"tokens; model\.text_length is"):
        outline.check_prompts(["word " * 300])


@pytest.mark.parametrize("family", FAMILIES.names())
def test_which_families_take_an_image_is_known_without_a_model(family: str):
    if family == "embedded":
        pytest.skip("it depends on the model")
    config = family_config("sd3.5", Path("nowhere")).model.model_copy(update={"family": family})
    plugin = FAMILIES.find(family)
    assert plugin.source_size(config) == ((SIDE, SIDE) if family in EDITING else None)
    unset = config.model_copy(update={"height": 0, "width": 0})
    assert plugin.source_size(unset) == ((512, 512) if family in EDITING else None)
    if family == "qwen-image-edit-plus":
        assert plugin.source_size(unset.model_copy(update={"options": {"images": 3}})) == (3, 512, 512)


def test_settings_of_images_that_are_missing_or_damaged_are_refused(tmp_path: Path):
    folder = save_pipeline("qwen-image-edit", tmp_path)
    config = family_config("qwen-image-edit", folder).model
    file = folder / "processor" / "preprocessor_config.json"
    assert file in FAMILIES.find("qwen-image-edit").files(config)
    file.write_text("{")
    with pytest.raises(ModelError, match="processor"):
        outline_model(config)
    file.unlink()
    with pytest.raises(ModelError, match=r"lacks processor/preprocessor_config\.json"):
        outline_model(config)


def test_a_source_keeps_its_bits_in_any_list(saved: Saved):
    model = load_model(family_config("flux-kontext", saved("flux-kontext")).model)
    assert isinstance(model, EditingModel)
    together, alone = model.encode_edits(PROMPTS[:2], PAIR), model.encode_edits(PROMPTS[1:2], PAIR[1:])
    assert together.source_BZC is not None and alone.source_BZC is not None
    assert torch.equal(together.source_BZC[1], alone.source_BZC[0])
    decoded = model.decode_edits(together.source_BZC, together)
    assert np.array_equal(decoded.numpy(), model.decode(together.source_BZC).numpy())  # type: ignore[attr-defined]


def test_the_order_of_several_images_counts_and_their_number_is_an_option(saved: Saved):
    family = "qwen-image-edit-plus"
    config = family_config(family, saved(family)).model
    model = load_model(config)
    assert isinstance(model, EditingModel)
    images = pair_of(family)[0]
    both, swapped = (model.encode_edits(PROMPTS[:1], [order]) for order in (images, images[::-1]))
    assert both.source_BZC is not None and swapped.source_BZC is not None
    assert torch.equal(both.source_BZC, swapped.source_BZC.roll(model.latent_shape[0], dims=1))
    assert not torch.equal(both.embeds_BLE, swapped.embeds_BLE)
    single = config.model_copy(update={"options": {"images": 1}})
    assert outline_model(single).sequence_lengths() == (2 * model.latent_shape[0], config.text_length + 1)
