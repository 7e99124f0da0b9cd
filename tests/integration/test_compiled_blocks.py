"""Models whose blocks are compiled: the same outputs and first ratio; refused where it cannot be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.models.families import compiled_blocks, pipeline_model
from gpu_runtime.models.loading import load_model
from storage.config.loading import load_config
from storage.errors import ConfigurationError
from tasks.checks import preflight
from tasks.checks.quick_checks import with_read_options
from tests.pipeline_reference import EXACT, difference, family_config, run_sampler, training_samples
from tests.tiny_pipelines import save_pipeline
from tests.tiny_run import perturbed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen-Image."""
    return save_pipeline("qwen-image", tmp_path_factory.mktemp("qwen-image"))


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """What other tests have compiled, or set, counts for nothing, and the other way round."""
    names = ("recompile_limit", "accumulated_recompile_limit", "fail_on_recompile_limit_hit")
    kept = {name: getattr(torch._dynamo.config, name) for name in names}
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    for name, value in kept.items():
        setattr(torch._dynamo.config, name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.skipif(not compiled_blocks._has_cpp_compiler(), reason="no C++ compiler on this machine")
@pytest.mark.parametrize(
    ("dtype", "exact", "ratio", "backend"),
    [("float32", EXACT, 1e-5, "inductor"), ("bfloat16", 0.0, 0.01, "eager")],  # which generates no code
)
def test_compiled_blocks_sample_and_train_as_plain_ones(
    folder: Path, dtype: str, exact: float, ratio: float, backend: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        pipeline_model, "compile_blocks", partial(compiled_blocks.compile_blocks, backend=backend)
    )
    config = family_config(
        "qwen-image", folder, adaptation={"gradient_checkpointing": True}, model={"dtype": dtype},
        algorithm={"ratio_tolerance": ratio},
    )  # fmt: skip
    compiled_config = config.model.model_copy(update={"compile": True})
    plain, compiled = (
        Policy(load_model(settings), config.adaptation, config.seed)
        for settings in (config.model, compiled_config)
    )
    assert compiled.trained.keys() == plain.trained.keys()
    weights = perturbed(plain.state(), 0.2)
    for policy in (plain, compiled):
        policy.load(weights)
    found = run_sampler(compiled.model, config)
    assert difference(found, run_sampler(plain.model, config)) <= exact
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert not torch._dynamo.utils.counters["graph_break"]
    with compiled.reference(), plain.reference():
        assert difference(run_sampler(compiled.model, config), run_sampler(plain.model, config)) <= exact
    sampler = Sampler(compiled.model, config.sampling)
    report = Trainer(compiled, sampler, config).train(training_samples(sampler, "qwen-image"))
    assert report.ratio_deviation <= ratio
    assert report.gradient_norm > 0


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    ("family", "graphs"), [("qwen-image-2.1", 1), ("z-image", 4), ("hunyuan-video-1.5", 4)]
)
def test_prompts_of_all_lengths_are_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, graphs: int
):
    """A graph for each length that a text without padding may have would take most of a run to compile."""
    monkeypatch.setattr(
        pipeline_model, "compile_blocks", partial(compiled_blocks.compile_blocks, backend="eager")
    )
    folder = save_pipeline(family, tmp_path)
    settings = {"guidance": 1.0, "negative_prompt": ""}
    plain, compiled = (
        load_model(family_config(family, folder, model={"compile": compile, **settings}).model)
        for compile in (False, True)
    )
    latents, sigma = torch.zeros(1, *plain.latent_shape), torch.tensor([0.5])
    with torch.no_grad():
        for length in (1, 2, 3, 40, 80, 100):
            encoded = plain.encode_prompts(["a" * length])
            expected = plain.velocity(latents, sigma, encoded)
            assert torch.equal(compiled.velocity(latents, sigma, encoded), expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_a_machine_without_a_compiler_is_refused_before_anything_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    prompts = folder.parent / "prompts.txt"
    prompts.write_text("".join(f"a sign number {number}\n" for number in range(4)))
    config = family_config(
        "qwen-image", folder, model={"compile": True}, reward={"scorer": "jpeg"}, evaluation={"prompts": 4},
        prompts={"train": str(prompts), "evaluate": str(prompts)},
    )  # fmt: skip
    monkeypatch.setattr(compiled_blocks, "_has_cpp_compiler", lambda: False)
    with pytest.raises(ConfigurationError, match=r"this machine lacks .*g\+\+\).*model\.compile=false"):
        preflight.check(config)


def test_triton_without_a_c_compiler_is_refused(monkeypatch: pytest.MonkeyPatch):
    gpu = torch.device("cuda")
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    with pytest.raises(ConfigurationError, match=r"lacks Triton \(comes with torch's CUDA builds\)"):
        compiled_blocks.refuse_missing_compiler(gpu)
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"this machine lacks a C compiler \(gcc, called by"):
        compiled_blocks.refuse_missing_compiler(gpu)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    compiled_blocks.refuse_missing_compiler(gpu)


def test_a_transformer_without_named_blocks_is_refused():
    with pytest.raises(ConfigurationError, match="Linear names no blocks"):
        compiled_blocks.compile_blocks(torch.nn.Linear(2, 2), False)


def test_what_was_never_tried_together_is_refused(folder: Path):
    with pytest.raises(ConfigurationError, match=r"model\.compile=True.*embedded"):
        with_read_options(load_config("glyphs", ["model.compile=true"], {}))
    settings = ["model.compile=true", "sequence_parallel.rollout=2", "runtime.spot_workers=3"]
    with pytest.raises(ConfigurationError, match="never tried together"):
        load_config("qwen-image-ocr-512", [f"model.path={folder}", *settings], {})
