"""What a run with a model family cannot work with is refused before any weight is loaded."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from diffusers import HunyuanVideo15Transformer3DModel
from safetensors.torch import load_file, save_file

from gpu_runtime.models.checks.memory_need import GIB, MemoryNeed, WorkNeed, refuse_too_large
from gpu_runtime.models.files.hub_folder import find_folder
from gpu_runtime.models.loading import load_model, outline_model
from gpu_runtime.models.registry import FAMILIES, family_of
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, ModelError, SpotlightError
from tasks.checks import preflight
from tasks.inputs import input_digests
from tests.pipeline_reference import family_config, own_pipeline
from tests.tiny_pipelines import Saved

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
Refusal = Callable[[RunConfig], str]
Sections = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def whole(saved: Saved) -> Path:
    return saved("sd3.5")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to be spoilt."""
    return shutil.copytree(whole, tmp_path / "model")


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """The message of a refused run; to load weights is an error."""

    def message(config: RunConfig) -> str:
        with pytest.raises(SpotlightError) as caught:
            preflight.check(config)
        return str(caught.value)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("weights were to be loaded")

    monkeypatch.setattr("gpu_runtime.models.families.pipeline_model.load_weights", refuse)
    return message


def run_config(folder: Path, family: str = "sd3.5", **sections: dict[str, Any]) -> RunConfig:
    """A run on a family, judged without weights."""
    prompts = folder.parent / "prompts.txt"
    prompts.write_text("".join(f"a sign number {number}\n" for number in range(4)))
    more: Sections = {
        "prompts": {"train": str(prompts), "evaluate": str(prompts)},
        "reward": {"scorer": "jpeg"},
        "evaluation": {"prompts": 4},
    }
    return family_config(family, folder, **(more | sections))


def shared(degree: int, **model: Any) -> Sections:
    """Rollouts that several devices share, with text as long as the family's own by default."""
    return {
        "model": {"text_length": 0} | model,
        "runtime": {"spot_workers": degree - 1},
        "sequence_parallel": {"rollout": degree},
    }


def rewrite(file: Path, **changes: Any) -> None:
    """Change settings of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_whole_model_passes_and_its_files_are_listed(whole: Path):
    config = run_config(whole)
    [warning] = preflight.check(config)
    assert "held-out prompts are also training prompts" in warning
    files = [file.relative_to(whole).as_posix() for file in family_of(config.model).files(config.model)]
    assert files[0] == "model_index.json"
    assert {WEIGHTS, "text_encoder_3/model.safetensors", "scheduler/scheduler_config.json"} <= set(files)
    assert len(files) == len(set(files))


def test_the_files_are_listed_without_importing_diffusers(whole: Path):
    program = (
        "import sys; from gpu_runtime.models.registry import family_of; "
        "from storage.config.model import ModelConfig; "
        f"settings = ModelConfig(family='sd3.5', path={str(whole)!r}); "
        "print(len(family_of(settings).files(settings)), {'torch', 'diffusers'} & set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    config = run_config(whole).model
    assert answer.stdout.split(maxsplit=1) == [str(len(family_of(config).files(config))), "set()\n"]


@pytest.mark.parametrize("missing", ["transformer/config.json", "text_encoder_3/config.json"])
def test_files_without_a_part_s_configuration_are_not_listed(folder: Path, missing: str):
    (folder / missing).unlink()
    config = run_config(folder)
    with pytest.raises(ModelError, match=f"lacks {missing}; download the model again"):
        input_digests(config)


def test_files_without_a_shard_of_the_weights_are_not_listed(folder: Path):
    settings = run_config(folder).model
    rewrite(folder / "model_index.json", unused=[])
    (folder / "unused").mkdir()
    listed = family_of(settings).files(settings)
    (folder / WEIGHTS).rename(folder / "transformer/first.safetensors")
    index = {"weight_map": {"one": "first.safetensors", "two": "second.safetensors"}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"lacks transformer/second\.safetensors; download"):
        family_of(settings).files(settings)
    shutil.copy(folder / "transformer/first.safetensors", folder / "transformer/second.safetensors")
    assert len(family_of(settings).files(settings)) == len(listed) + 1


@pytest.mark.parametrize("path", ["/models/nothere", "./nothere", "models/a/b"])
def test_a_path_that_no_model_of_the_hub_can_have_is_not_to_be_downloaded(path: str):
    with pytest.raises(
        ModelError, match=f"model.path = '{path}' is not a local folder.*name a folder"
    ) as refused:
        find_folder("model.path", path)
    assert "hf download" not in str(refused.value)


def test_a_name_that_is_not_here(whole: Path, refusal: Refusal):
    message = refusal(run_config(whole, model={"path": "nobody/no-such-model"}))
    assert "'nobody/no-such-model' is not a local folder" in message
    assert "`hf download nobody/no-such-model`" in message


def test_a_model_of_another_family(whole: Path, refusal: Refusal):
    message = refusal(run_config(whole, family="flux"))
    assert "is a StableDiffusion3Pipeline, not a FluxPipeline; set model.family" in message


def test_missing_files_are_named(folder: Path, refusal: Refusal):
    (folder / WEIGHTS).unlink()
    (folder / "tokenizer_3/tokenizer_config.json").unlink()
    message = refusal(run_config(folder))
    assert f"lacks {WEIGHTS}, tokenizer_3/tokenizer_config.json; download the model again" in message
    index = {"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    message = refusal(run_config(folder))
    assert "transformer/part-1.safetensors, transformer/part-2.safetensors" in message


def test_weights_that_lack_some_are_not_filled_with_random_numbers(folder: Path):
    tensors = load_file(folder / WEIGHTS)
    del tensors["proj_out.weight"]
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(
        ModelError, match=r"lacks 1 weights of a SD3Transformer2DModel, such as proj_out\.weight"
    ):
        load_model(run_config(folder).model)


SIZES = "; this model's sides must be multiples of {}"
UNKNOWN = "sequence parallelism does not know {}"


@pytest.mark.parametrize(
    ("family", "sections", "says"),
    [
        ("sd3.5", {"model": {"height": 30}}, f"model.height is 30{SIZES.format(4)}, such as 32"),
        ("sd3.5", {"model": {"width": 128}}, "position table ends at 64 pixels: lower them"),
        ("sd3.5", {"model": {"text_length": 4, "negative_prompt": ""}}, "model.text_length is 4: shorten"),
        ("sd3.5", {"model": {"attention": "flash"}}, "the choice of an attention kernel to torch; use auto"),
        ("sd3.5", {"adaptation": {"targets": ["img_mlp.net.2"]}}, "names no layer of this model"),
        ("sd3.5", shared(4), "2 attention heads do not divide by degree 4"),
        ("qwen-image", {"model": {"attention": "flash"}}, "supports no mask"),
        (
            "qwen-image", shared(2, height=12, width=20),  # 3 x 5 tokens
            "15 image tokens do not divide by degree 2; below it, 1 would do",
        ),
        ("qwen-image-2.1", {"model": {"attention": "_native_flash"}}, "supports no mask"),
        ("qwen-image-2.1", {"model": {"height": 48}}, f"model.height is 48{SIZES.format(32)}"),
        ("qwen-image-2.1", {"model": {"text_length": 8}}, "model.text_length is 8: shorten"),
        ("qwen-image-2.1", shared(2, text_length=128), UNKNOWN.format("QwenImage21Transformer2DModel")),
        ("flux2-klein", {"model": {"height": 30}}, f"model.height is 30{SIZES.format(4)}"),
        ("flux2-klein", {"model": {"text_length": 8}}, "model.text_length is 8: shorten the prompt"),
        ("flux", {"model": {"attention": "flash"}}, "model.attention is flash, which is not available"),
        ("sana", {"model": {"height": 30}}, f"model.height is 30{SIZES.format(4)}"),
        ("sana", shared(2, text_length=128), UNKNOWN.format("SanaTransformer2DModel; use degree 1")),
        ("hunyuan-video-1.5", {"model": {"frames": 8}}, "model.frames is 8; for this model it must be 1"),
        ("hunyuan-video-1.5", {"model": {"width": 26}}, f"model.width is 26{SIZES.format(4)}"),
        ("hunyuan-video-1.5", shared(4), "2 attention heads do not divide by degree 4"),
        (
            "wan2.2", {"model": {"frames": 8}},
            "model.frames is 8; for this model it must be 1 plus a multiple of 4, such as 9",
        ),
        ("wan2.2", {"model": {"width": 24}}, f"model.width is 24{SIZES.format(16)}"),
        ("wan2.2", shared(4), "2 attention heads do not divide by degree 4"),
        (
            "wan2.2", shared(2, height=16, frames=9),  # 3 frames of 1 x 3 tokens
            "9 image tokens do not divide by degree 2; below it, 1 would do",
        ),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_a_family(
    saved: Saved, refusal: Refusal, family: str, sections: Sections, says: str
):
    message = refusal(run_config(saved(family), family, **sections))
    assert says in message
    assert "text_length=" not in message, "no other length would help"


def test_a_kernel_of_16_bits_is_refused_on_a_gpu_in_float32(saved: Saved):
    config = run_config(saved("flux"), "flux", model={"attention": "_native_flash", "dtype": "float32"})
    outline, gpu = family_of(config.model).outline, torch.device("cuda")
    with pytest.raises(ConfigurationError, match=r"computes only in 16 bits, but model\.dtype is float32"):
        outline(config.model, gpu)
    outline(config.model, torch.device("cpu"))
    outline(config.model.model_copy(update={"dtype": "auto"}), gpu)


SCHEDULER = "scheduler/scheduler_config.json"


@pytest.mark.parametrize(
    ("family", "file", "changes", "model", "says"),
    [
        (
            "flux", "transformer/config.json", {"guidance_embeds": False}, {"negative_prompt": ""},
            "takes none (its guidance_embeds is false",
        ),
        ("flux2-klein", "model_index.json", {"is_distilled": True}, {}, "is distilled and takes none"),
        (
            "flux2-klein", "text_encoder/config.json", {"num_hidden_layers": 20, "layer_types": None},
            {"guidance": 1.0}, "has 20 layers, and FLUX.2-klein reads layer 27",
        ),
        ("sana", SCHEDULER, {"use_flow_sigmas": False}, {}, "is not that of a flow matching model"),
        ("wan2.2", SCHEDULER, {"prediction_type": "epsilon"}, {}, "is not that of a flow matching model"),
        (
            "wan2.2", SCHEDULER, {"_class_name": "FlowMatchEulerDiscreteScheduler"}, {},
            "not a UniPCMultistepScheduler",
        ),
    ],
)  # fmt: skip
def test_models_of_another_kind_than_their_family_s(
    saved: Saved, refusal: Refusal, tmp_path: Path, family: str, file: str, changes: dict[str, Any],
    model: dict[str, Any], says: str,
):  # fmt: skip
    folder = shutil.copytree(saved(family), tmp_path / "model")
    rewrite(folder / file, **changes)
    assert says in refusal(run_config(folder, family, model=model))


def test_a_processor_is_one_of_qwen_image_21_s_files(saved: Saved, refusal: Refusal, tmp_path: Path):
    folder = shutil.copytree(saved("qwen-image-2.1"), tmp_path / "model")
    config = run_config(folder, "qwen-image-2.1")
    file = folder / "processor/tokenizer_config.json"
    assert file in family_of(config.model).files(config.model)
    file.unlink()
    assert "lacks processor/tokenizer_config.json" in refusal(config)


def test_a_sana_s_instruction_does_not_count_as_text(saved: Saved, refusal: Refusal):
    folder = saved("sana")
    tokenizer = own_pipeline("sana", folder).tokenizer
    words = len(tokenizer("a sign number 0").input_ids)
    negative = " ".join(["blue"] * (words + 1))
    tokens = len(tokenizer(negative).input_ids)
    for least, model in ((words, {}), (tokens, {"negative_prompt": negative})):
        fits = least if model else least + 2
        preflight.check(run_config(folder, "sana", model={"text_length": fits} | model))
        short = run_config(folder, "sana", model={"text_length": least - 1} | model)
        assert f"model.text_length is {least - 1}: shorten" in refusal(short)


def test_a_distilled_hunyuan_video_is_refused(saved: Saved, refusal: Refusal, tmp_path: Path):
    folder = shutil.copytree(saved("hunyuan-video-1.5"), tmp_path / "model")
    config = run_config(folder, "hunyuan-video-1.5")
    usage = family_of(config.model).adapter_usage("PATH")
    assert usage.endswith('pipe.transformer.load_lora_adapter("FOLDER")')
    distilled = json.loads((folder / "transformer/config.json").read_text()) | {"use_meanflow": True}
    kind: Any = HunyuanVideo15Transformer3DModel
    kind.from_config(distilled).save_pretrained(folder / "transformer")
    assert "takes two noise levels at once (use_meanflow)" in refusal(config)


@pytest.mark.parametrize("model", [{"model.family": "flux", "model.path": "x"}, {}])
def test_frames_of_a_family_of_images(model: dict[str, str]):
    changes = [f"{name}={value}" for name, value in model.items()]
    with pytest.raises(ConfigurationError, match=r"model\.frames"):
        FAMILIES.stored(load_config("glyphs", [*changes, "model.frames=17"], {}))


def test_statistics_of_a_vae_that_are_missing_are_not_made_up(saved: Saved, tmp_path: Path):
    folder = shutil.copytree(saved("flux2-klein"), tmp_path / "model")
    file = folder / "vae/diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    del tensors["bn.running_mean"]
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"AutoencoderKLFlux2, such as bn\.running_mean"):
        load_model(run_config(folder, family="flux2-klein").model)


def test_a_machine_too_small(whole: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 19))
    message = refusal(run_config(whole))
    assert "the run needs at least 0.0 GiB for 3 models" in message
    waiting = refusal(run_config(whole, runtime={"standby_workers": 2}))
    assert "the run needs at least 0.0 GiB for 5 models" in waiting, "each holds a model"
    assert "take a larger device or a smaller model" in message and "or fewer workers" in message


def test_a_gpu_too_small(monkeypatch: pytest.MonkeyPatch):
    found = SimpleNamespace(total_memory=80 * GIB, name="a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    gpu = torch.device("cuda")
    adapters = WorkNeed(trained_bytes=GIB)
    need = MemoryNeed(transformer_bytes=40 * GIB, vae_bytes=GIB, encoders_bytes=15 * GIB, work=adapters)
    refuse_too_large(need, gpu, 3, trainers=1)
    everything = dataclasses.replace(need, work=WorkNeed(40 * GIB, trains_all=True))
    refuse_too_large(everything, gpu, 3, trainers=0)
    with pytest.raises(ConfigurationError) as caught:
        refuse_too_large(everything, gpu, 3, trainers=1)
    message = str(caught.value)
    assert "the run needs at least 176.0 GiB (transformer 40.0, VAE 1.0, text encoders 15.0" in message
    assert "AdamW's moments 80.0, gradients 40.0)" in message
    assert "a GPU has 80.0 GiB" in message
    assert "or adaptation.mode=lora" in message and "or model.encoders=offload" in message
    assert "batch_size" not in message


def test_text_that_does_not_divide_is_refused_with_the_length_that_would_do(
    saved: Saved, whole: Path, refusal: Refusal
):
    message = refusal(run_config(whole, "sd3.5", **shared(2)))
    assert "sequence_parallel.rollout = 2: " in message
    assert "333 text tokens (no mask could hide padding) do not divide by degree 2; below it, 1" in message
    assert message.endswith("or set model.text_length=257")
    preflight.check(run_config(whole, "sd3.5", **shared(2, text_length=257)))
    even = shared(2, height=16, width=20, text_length=511)
    preflight.check(run_config(saved("qwen-image"), "qwen-image", **even))
    preflight.check(run_config(saved("wan2.2"), "wan2.2", **shared(2, text_length=511)))


TWENTY = {"text_length": 0, "height": 20, "width": 20, "negative_prompt": ""}


@pytest.mark.parametrize(
    ("family", "model", "lengths", "image"),
    [
        ("qwen-image", TWENTY, (25, 512), (20, 20, 3)),
        ("qwen-image-2.1", {}, (4 * 4, 128), (64, 64, 3)),
        ("sd3.5", TWENTY, (25, 77 + 256), (20, 20, 3)),
        ("flux", TWENTY, (25, 512), (20, 20, 3)),
        ("flux2-klein", TWENTY, (25, 512), (20, 20, 3)),
        ("z-image", TWENTY, (32, 32), (20, 20, 3)),  # its transformer fills up both to multiples of 32 itself
        ("sana", {}, (8 * 8, 128), (32, 32, 3)),
        # Latent frames, rows and columns of patches; of the text also quoted texts.
        ("hunyuan-video-1.5", {"frames": 9}, (3 * 4 * 6, 512 + 256), (9, 16, 24, 3)),
        ("wan2.2", {"frames": 9}, (3 * 2 * 3, 128), (9, 32, 48, 3)),
    ],
)
def test_a_whole_family_passes_and_tells_its_sizes_without_weights(
    saved: Saved, family: str, model: dict[str, Any], lengths: tuple[int, int], image: tuple[int, ...]
):
    frames = {"frames": 2} if "frames" in model else {}
    config = run_config(saved(family), family, model=model, reward={"scorer": "jpeg", **frames})
    preflight.check(config)
    outline = outline_model(config.model)
    assert outline.sequence_lengths() == load_model(config.model).sequence_lengths() == lengths
    assert outline.blank_image().shape == image
