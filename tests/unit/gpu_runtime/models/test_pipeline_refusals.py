"""What a run with a model family cannot work with is refused before any weight is loaded."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from diffusers import HunyuanVideo15Transformer3DModel
from safetensors.torch import load_file, save_file

from gpu_runtime.models.checks.memory_need import GIB, MemoryNeed, WorkNeed, refuse_too_large
from gpu_runtime.models.loading import load_model, outline_model
from gpu_runtime.models.registry import family_of, read_family_options
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, ModelError, SpotlightError
from tasks.checks import preflight
from tests.pipeline_reference import family_config, own_pipeline
from tests.tiny_pipelines import save_pipeline

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole pipeline, not to be changed."""
    return save_pipeline("sd3.5", tmp_path_factory.mktemp("whole"))


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to be spoilt."""
    return shutil.copytree(whole, tmp_path / "model")


def run_config(folder: Path, family: str = "sd3.5", **sections: dict[str, Any]) -> RunConfig:
    """A run on a family, judged without weights."""
    prompts = folder.parent / "prompts.txt"
    prompts.write_text("".join(f"a sign number {number}\n" for number in range(4)))
    more: dict[str, dict[str, Any]] = {
        "prompts": {"train": str(prompts), "evaluate": str(prompts)},
        "reward": {"scorer": "jpeg"},
        "evaluation": {"prompts": 4},
    }
    return family_config(family, folder, **(more | sections))


def refusal(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> str:
    """The message of a refused run; to load weights is an error."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("weights were to be loaded")

    monkeypatch.setattr("gpu_runtime.models.families.pipeline_model.load_weights", refuse)
    with pytest.raises(SpotlightError) as caught:
        preflight.check(config)
    return str(caught.value)


def test_a_whole_model_passes_and_its_files_are_listed(whole: Path):
    config = run_config(whole)
    [warning] = preflight.check(config)
    assert "held-out prompts are trained on too" in warning
    files = [file.relative_to(whole).as_posix() for file in family_of(config.model).files(config.model)]
    assert files[0] == "model_index.json"
    assert {WEIGHTS, "text_encoder_3/model.safetensors", "scheduler/scheduler_config.json"} <= set(files)
    assert len(files) == len(set(files))


def test_a_name_that_is_not_here(whole: Path, monkeypatch: pytest.MonkeyPatch):
    message = refusal(run_config(whole, model={"path": "nobody/no-such-model"}), monkeypatch)
    assert "'nobody/no-such-model' is no folder here" in message
    assert "`hf download nobody/no-such-model`" in message


def test_a_model_of_another_family(whole: Path, monkeypatch: pytest.MonkeyPatch):
    message = refusal(run_config(whole, family="flux"), monkeypatch)
    assert "is a StableDiffusion3Pipeline, not a FluxPipeline; set model.family" in message


def test_missing_files_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / WEIGHTS).unlink()
    (folder / "tokenizer_3/tokenizer_config.json").unlink()
    message = refusal(run_config(folder), monkeypatch)
    assert f"lacks {WEIGHTS}, tokenizer_3/tokenizer_config.json; download the model again" in message
    index = {"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    message = refusal(run_config(folder), monkeypatch)
    assert "transformer/part-1.safetensors, transformer/part-2.safetensors" in message


def test_a_file_that_is_cut_off(folder: Path, monkeypatch: pytest.MonkeyPatch):
    whole_bytes = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole_bytes[:-100])
    message = refusal(run_config(folder), monkeypatch)
    assert f"has {len(whole_bytes) - 100} bytes of {len(whole_bytes)}: it is cut off" in message
    (folder / WEIGHTS).write_bytes(b"version https")
    assert "is no safetensors file" in refusal(run_config(folder), monkeypatch)


def test_weights_that_lack_some_are_not_filled_with_random_numbers(folder: Path):
    tensors = load_file(folder / WEIGHTS)
    del tensors["proj_out.weight"]
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(
        ModelError, match=r"lacks 1 weights of a SD3Transformer2DModel, such as proj_out\.weight"
    ):
        load_model(run_config(folder).model)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"height": 30}, r"model.height is 30; this model makes images whose sides 4 divides, such as 32"),
        ({"width": 128}, r"table of positions ends at 64 pixels: lower them"),
        ({"text_length": 4}, r"tokens; model.text_length is 4: shorten the prompt"),
    ],
)
def test_sizes_that_do_not_fit(
    whole: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], says: str
):
    assert says in refusal(run_config(whole, model={"negative_prompt": ""} | model), monkeypatch)


def test_adapters_that_name_no_layer(whole: Path, monkeypatch: pytest.MonkeyPatch):
    message = refusal(run_config(whole, adaptation={"targets": ["img_mlp.net.2"]}), monkeypatch)
    assert "names no layer of this model" in message


def test_a_kernel_without_a_mask_for_a_family_that_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = save_pipeline("qwen-image", tmp_path / "model")
    config = run_config(folder, family="qwen-image", model={"attention": "flash"})
    assert "takes no mask" in refusal(config, monkeypatch)


def test_guidance_of_a_model_that_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = save_pipeline("flux", tmp_path / "model")
    file = folder / "transformer/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"guidance_embeds": False}))
    message = refusal(run_config(folder, family="flux", model={"negative_prompt": ""}), monkeypatch)
    assert "model.guidance is 3.5" in message
    assert "takes none" in message


def test_a_flux2_klein_is_refused_guidance_it_does_not_take_and_text_it_cannot_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = save_pipeline("flux2-klein", tmp_path / "model")
    config = run_config(folder, family="flux2-klein")
    preflight.check(config)
    too_long = run_config(folder, family="flux2-klein", model={"text_length": 8})
    assert "model.text_length is 8: shorten the prompt" in refusal(too_long, monkeypatch)
    odd = run_config(folder, family="flux2-klein", model={"height": 30})
    assert "model.height is 30; this model makes images whose sides 4 divides" in refusal(odd, monkeypatch)
    index = folder / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"is_distilled": True}))
    assert "is distilled and takes none" in refusal(config, monkeypatch)
    encoder = folder / "text_encoder/config.json"
    few = json.loads(encoder.read_text()) | {"num_hidden_layers": 20, "layer_types": None}
    encoder.write_text(json.dumps(few))
    plain = run_config(folder, family="flux2-klein", model={"guidance": 1.0})
    assert "has 20 layers, and FLUX.2-klein reads layer 27" in refusal(plain, monkeypatch)


def test_a_qwen_image_21_is_refused_odd_sides_long_text_and_shared_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = save_pipeline("qwen-image-2.1", tmp_path / "model")

    def run(**sections: dict[str, Any]) -> RunConfig:
        return run_config(folder, family="qwen-image-2.1", **sections)

    preflight.check(run())
    assert outline_model(run().model).sequence_lengths() == (4 * 4, 128)
    files = family_of(run().model).files(run().model)
    assert folder / "processor/tokenizer_config.json" in files
    assert "model.height is 48; this model makes images whose sides 32 divides" in refusal(
        run(model={"height": 48}), monkeypatch
    )
    assert "model.text_length is 8: shorten" in refusal(run(model={"text_length": 8}), monkeypatch)
    shared = run(sequence_parallel={"rollout": 2}, runtime={"spot_workers": 1})
    assert "sequence parallelism does not know QwenImage21Transformer2DModel" in refusal(shared, monkeypatch)
    (folder / "processor/tokenizer_config.json").unlink()
    assert "lacks processor/tokenizer_config.json" in refusal(run(), monkeypatch)


def test_a_sana_is_refused_sides_long_text_shared_samples_and_a_noise_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = save_pipeline("sana", tmp_path / "model")

    def run(**sections: dict[str, Any]) -> RunConfig:
        return run_config(folder, family="sana", **sections)

    preflight.check(run())
    assert outline_model(run().model).sequence_lengths() == (8 * 8, 128)
    assert "model.height is 30; this model makes images whose sides 4 divides" in refusal(
        run(model={"height": 30}), monkeypatch
    )
    # The instruction before a prompt does not count.
    words = len(folder_tokens(folder, "a sign number 0"))
    preflight.check(run(model={"text_length": words + 2}))
    assert f"model.text_length is {words - 1}: shorten" in refusal(
        run(model={"text_length": words - 1}), monkeypatch
    )
    negative = " ".join(["blue"] * (words + 1))
    tokens = len(folder_tokens(folder, negative))
    preflight.check(run(model={"text_length": tokens, "negative_prompt": negative}))
    assert f"has {tokens} tokens; model.text_length is {tokens - 1}: shorten" in refusal(
        run(model={"text_length": tokens - 1, "negative_prompt": negative}), monkeypatch
    )
    shared = run(sequence_parallel={"rollout": 2}, runtime={"spot_workers": 1})
    assert "sequence parallelism does not know SanaTransformer2DModel; use degree 1" in refusal(
        shared, monkeypatch
    )
    file = folder / "scheduler/scheduler_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"use_flow_sigmas": False}))
    assert "is not that of a flow matching model" in refusal(run(), monkeypatch)


def folder_tokens(folder: Path, prompt: str) -> list[int]:
    """Tokens of a text as the pipeline's own tokenizer cuts it."""
    return own_pipeline("sana", folder).tokenizer(prompt).input_ids


def test_a_hunyuan_video_is_refused_frames_a_distilled_model_and_shared_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = save_pipeline("hunyuan-video-1.5", tmp_path / "model")

    def run(**sections: dict[str, Any]) -> RunConfig:
        return run_config(folder, family="hunyuan-video-1.5", **sections)

    preflight.check(run(reward={"scorer": "jpeg", "frames": 2}))
    outline = outline_model(run(model={"frames": 9}).model)
    assert outline.blank_image().shape == (9, 16, 24, 3)
    assert outline.sequence_lengths() == (3 * 4 * 6, 512 + 256 + 729), "prompt, quoted texts, missing image"
    assert "model.frames is 8; this model makes clips of 1 frame and a multiple of 4" in refusal(
        run(model={"frames": 8}), monkeypatch
    )
    assert "model.width is 26; this model makes images whose sides 4 divides" in refusal(
        run(model={"width": 26}), monkeypatch
    )
    shared = run(sequence_parallel={"rollout": 2}, runtime={"spot_workers": 1})
    assert "sequence parallelism does not know HunyuanVideo15Transformer3DModel" in refusal(
        shared, monkeypatch
    )
    usage = family_of(run().model).adapter_usage("PATH")
    assert usage.endswith('pipe.transformer.load_lora_adapter("FOLDER")')
    config = json.loads((folder / "transformer/config.json").read_text()) | {"use_meanflow": True}
    kind: Any = HunyuanVideo15Transformer3DModel
    kind.from_config(config).save_pretrained(folder / "transformer")
    assert "takes two noise levels at once (use_meanflow)" in refusal(run(), monkeypatch)


def test_a_wan_is_refused_frames_another_scheduler_and_shared_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = save_pipeline("wan2.2", tmp_path / "model")

    def run(**sections: dict[str, Any]) -> RunConfig:
        return run_config(folder, family="wan2.2", **sections)

    preflight.check(run(reward={"scorer": "jpeg", "frames": 2}))
    outline = outline_model(run(model={"frames": 9}).model)
    assert outline.blank_image().shape == (9, 32, 48, 3)
    assert outline.sequence_lengths() == (3 * 2 * 3, 128), "latent frames, rows and columns of patches"
    message = refusal(run(model={"frames": 8}), monkeypatch)
    assert "model.frames is 8; this model makes clips of 1 frame and a multiple of 4, such as 9" in message
    assert "model.width is 24; this model makes images whose sides 16 divides" in refusal(
        run(model={"width": 24}), monkeypatch
    )
    shared = run(sequence_parallel={"rollout": 2}, runtime={"spot_workers": 1})
    assert "sequence parallelism does not know WanTransformer3DModel; use degree 1" in refusal(
        shared, monkeypatch
    )
    file = folder / "scheduler/scheduler_config.json"
    scheduler = json.loads(file.read_text())
    file.write_text(json.dumps(scheduler | {"prediction_type": "epsilon"}))
    assert "is not that of a flow matching model" in refusal(run(), monkeypatch)
    file.write_text(json.dumps(scheduler | {"_class_name": "FlowMatchEulerDiscreteScheduler"}))
    assert "not a UniPCMultistepScheduler" in refusal(run(), monkeypatch)
    file.write_text(json.dumps(scheduler))


@pytest.mark.parametrize("model", [{"model.family": "flux", "model.path": "x"}, {}])
def test_frames_of_a_family_of_images(model: dict[str, str]):
    changes = [f"{name}={value}" for name, value in model.items()]
    with pytest.raises(ConfigurationError, match=r"model\.frames"):
        read_family_options(load_config("glyphs", [*changes, "model.frames=17"], {}))


def test_statistics_of_a_vae_that_are_missing_are_not_made_up(tmp_path: Path):
    folder = save_pipeline("flux2-klein", tmp_path / "model")
    file = folder / "vae/diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    del tensors["bn.running_mean"]
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"AutoencoderKLFlux2, such as bn\.running_mean"):
        load_model(run_config(folder, family="flux2-klein").model)


def test_a_kernel_that_is_not_installed(whole: Path, monkeypatch: pytest.MonkeyPatch):
    message = refusal(run_config(whole, model={"attention": "sage"}), monkeypatch)
    assert "model.attention is sage, which cannot be had here" in message
    assert "use native" in message


def test_a_machine_too_small(whole: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 19))
    message = refusal(run_config(whole), monkeypatch)
    assert "the run needs at least 0.0 GiB for 3 models" in message
    waiting = refusal(run_config(whole, runtime={"standby_workers": 2}), monkeypatch)
    assert "the run needs at least 0.0 GiB for 5 models" in waiting, "each holds a model"
    assert "take a larger device or a smaller model" in message and "or fewer workers" in message


def test_a_gpu_too_small(monkeypatch: pytest.MonkeyPatch):
    found = SimpleNamespace(total_memory=80 * GIB, name="a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    gpu = torch.device("cuda")
    adapters = WorkNeed(adapters_bytes=GIB)
    need = MemoryNeed(transformer_bytes=40 * GIB, vae_bytes=GIB, encoders_bytes=15 * GIB, work=adapters)
    refuse_too_large(need, gpu, 3, trainers=1)
    everything = dataclasses.replace(need, work=WorkNeed(trains_all=True))
    refuse_too_large(everything, gpu, 3, trainers=0)
    with pytest.raises(ConfigurationError) as caught:
        refuse_too_large(everything, gpu, 3, trainers=1)
    message = str(caught.value)
    assert "the run needs at least 176.0 GiB (transformer 40.0, VAE 1.0, text encoders 15.0" in message
    assert "AdamW's moments 80.0, gradients 40.0)" in message
    assert "a GPU has 80.0 GiB" in message
    assert "or adaptation.mode=lora" in message and "or model.encoders=offload" in message
    assert "batch_size" not in message


def shared_config(folder: Path, family: str, degree: int, **model: Any) -> RunConfig:
    """A run whose rollouts are shared, with text of the family's own length unless `model` says otherwise."""
    return run_config(
        folder,
        family,
        model={"text_length": 0} | model,
        runtime={"spot_workers": degree - 1},
        sequence_parallel={"rollout": degree},
    )


def test_text_that_does_not_divide_is_refused_with_the_length_that_would_do(
    whole: Path, monkeypatch: pytest.MonkeyPatch
):
    message = refusal(shared_config(whole, "sd3.5", 2), monkeypatch)
    assert "sequence_parallel.rollout = 2: " in message
    assert "333 text tokens (no mask could hide padding) do not divide by degree 2; below it, 1" in message
    assert message.endswith("or set model.text_length=257")
    preflight.check(shared_config(whole, "sd3.5", 2, text_length=257))


def test_heads_that_do_not_divide_are_refused_whatever_the_text(whole: Path, monkeypatch: pytest.MonkeyPatch):
    message = refusal(shared_config(whole, "sd3.5", 4), monkeypatch)
    assert "2 attention heads do not divide by degree 4" in message
    assert "text_length" not in message


def test_image_tokens_that_do_not_divide_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = save_pipeline("qwen-image", tmp_path / "model")
    odd = {"height": 12, "width": 20}  # 3 x 5 tokens
    message = refusal(shared_config(folder, "qwen-image", 2, **odd), monkeypatch)
    assert "15 image tokens do not divide by degree 2; below it, 1 would do" in message
    preflight.check(shared_config(folder, "qwen-image", 2, height=16, width=20, text_length=511))


def test_a_kernel_that_cannot_share_is_refused(whole: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpu_runtime.models.checks.pipeline_outline.choose_attention", lambda *_: None)
    config = shared_config(whole, "sd3.5", 2, text_length=257, attention="_flash_3")
    assert "attention backend _flash_3 cannot be shared" in refusal(config, monkeypatch)


@pytest.mark.parametrize(
    ("family", "side", "lengths"),
    [
        ("qwen-image", 20, (25, 512)),
        ("sd3.5", 20, (25, 77 + 256)),
        ("flux", 20, (25, 512)),
        ("flux2-klein", 20, (25, 512)),
        ("z-image", 20, (32, 32)),  # its transformer fills up image and text to multiples of 32 itself
    ],
)
def test_sequence_lengths_are_told_without_weights(
    tmp_path: Path, family: str, side: int, lengths: tuple[int, int]
):
    folder = save_pipeline(family, tmp_path / "model")
    model = {"text_length": 0, "height": side, "width": side, "negative_prompt": ""}
    config = run_config(folder, family, model=model).model
    assert outline_model(config).sequence_lengths() == lengths
    assert load_model(config).sequence_lengths() == lengths
