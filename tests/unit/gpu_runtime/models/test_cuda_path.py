"""The way through the code on a GPU, where there is none: torch's `meta` device stands in for it.

A tensor there has a shape and a type, and no operation takes it together with one on the CPU. So what is left
on the CPU by mistake shows, and so does each place where the CPU asks for a number and would wait for a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils import deterministic

from gpu_runtime.cluster import fork_client
from gpu_runtime.learning.sharded_training import ShardedPolicy
from gpu_runtime.models import loading
from gpu_runtime.models.families.qwen_image import QwenImageModel
from gpu_runtime.models.files.pipeline_parts import Parts
from gpu_runtime.models.protocol import Conditioning
from gpu_runtime.scheduling.requests import RequestKind
from storage.config.model import ModelConfig
from tests.tiny_model import TinyModel
from tests.tiny_pipelines import PIPELINES, SIDE
from tests.tiny_run import TinyRun, request, tiny_config

ROOT = Path(__file__).resolve().parents[4]
STAND_IN = torch.device("meta")


@pytest.fixture
def taken() -> list[torch.Tensor]:
    """The copies that were taken off the device."""
    return []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, taken: list[torch.Tensor]) -> list[str]:
    """What was done in order: `velocity`, and `wait` for each number or tensor that the CPU asked for."""
    seen: list[str] = []
    to = torch.Tensor.to

    def here(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_meta:
            return tensor
        seen.append("wait")
        taken.append(torch.zeros(tensor.shape, dtype=tensor.dtype))
        return taken[-1]

    def moved(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        to_cpu = any(str(argument) == "cpu" for argument in args)
        return here(tensor) if to_cpu and tensor.is_meta else to(tensor, *args, **kwargs)

    def number(of: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
        return lambda tensor: of(here(tensor))

    monkeypatch.setattr(torch.Tensor, "to", moved)
    monkeypatch.setattr(torch.Tensor, "cpu", here)
    monkeypatch.setattr(torch.Tensor, "__float__", number(lambda tensor: float(tensor.item())))
    monkeypatch.setattr(torch.Tensor, "__bool__", number(lambda tensor: True))
    return seen


class OnStandIn(TinyModel):
    """The tiny model on the stand-in."""

    def __init__(self, seen: list[str]) -> None:
        with STAND_IN:
            super().__init__()
        self.device = STAND_IN
        self._seen = seen

    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        return super().encode_prompts(prompts).to(self.device)

    def velocity(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        self._seen.append("velocity")
        return super().velocity(latents_BSC, sigma_B, conditioning)


@pytest.mark.parametrize(
    ("objective", "sde"),
    [
        ("grpo", "flow"),
        ("grpo", "cps"),
        ("grpo-guard", "flow"),
        ("nft", "flow"),
        ("nft", "none"),
        ("awm", "flow"),
        ("dpo", "flow"),
    ],
)
@pytest.mark.parametrize("mode", ["full", "lora"])
def test_rollout_and_training_leave_nothing_on_the_cpu(asked: list[str], objective: str, sde: str, mode: str):
    sampling = tiny_config().sampling.model_dump() | {"sde": sde}
    algorithm = {"objective": objective, "prompts_per_iteration": 3, "group_size": 2, "kl_weight": 0.1}
    config = tiny_config(
        sampling=sampling,
        algorithm={**algorithm, "updates_per_iteration": 2},
        adaptation={"mode": mode, "rank": 2, "targets": ["to_q", "to_v"]},
    )
    run = TinyRun(config, OnStandIn(asked))
    assert {weight.device for weight in run.policy.trained.values()} == {STAND_IN}
    run.sampler.generate([request(0, 0, RequestKind.EVALUATE)])
    assert run.trainer.train(run.rollout()).training_steps == 2
    run.policy.load(run.policy.state())


@pytest.mark.parametrize("objective", ["nft", "awm"])
def test_what_later_updates_need_of_the_old_policy_is_kept_off_the_device(asked: list[str], objective: str):
    run = TinyRun(tiny_config(algorithm={"objective": objective}), OnStandIn(asked))
    kept: Any = run.trainer._objective
    rows = kept.rows(run.rollout())[:4]
    kept.keep(rows)
    assert [old.device.type for old in kept._old.values()] == 4 * ["cpu"]
    assert np.isfinite(kept.backward(rows, 1.0).loss)


def test_no_denoising_step_waits_for_the_one_before(asked: list[str]):
    run = TinyRun(tiny_config(), OnStandIn(asked))
    states = run.sampler.begin([request(0, seed) for seed in range(3)])
    asked.clear()
    run.sampler.advance(states)
    first = asked.index("velocity")  # the prompts are encoded before
    assert asked[first : first + 4] == ["velocity"] * 4 and set(asked[first + 4 :]) == {"wait"}


def qwen_image(**settings: Any) -> QwenImageModel:
    """The tiny pipeline on the stand-in."""
    pipeline: Any = PIPELINES["qwen-image"]()
    parts = Parts(
        pipeline.transformer, pipeline.vae, pipeline.scheduler, {"text_encoder": pipeline.text_encoder},
        {"tokenizer": pipeline.tokenizer},
    )  # fmt: skip
    size = {"path": "any", "width": SIDE, "height": SIDE, "text_length": 16}
    return QwenImageModel(parts, ModelConfig(family="qwen-image", **size, **settings), STAND_IN)


def test_a_pipeline_encodes_predicts_and_decodes_on_its_device(asked: list[str]):
    model = qwen_image(guidance=2.0)
    encoded = model.encode_prompts(["a sign", "two signs"])
    latents = torch.zeros(2, *model.latent_shape, device=STAND_IN)
    velocity = model.velocity(latents, torch.ones(2, device=STAND_IN), encoded)
    assert velocity.device == STAND_IN and velocity.dtype == torch.float32
    assert model.decode(latents).device.type == "cpu"


def test_encoders_that_wait_on_the_cpu_are_not_copied_back(asked: list[str], monkeypatch: pytest.MonkeyPatch):
    model = qwen_image(encoders="offload")
    encoder = model._encoders["text_encoder"]

    def held() -> dict[str, tuple[torch.device, int]]:
        tensors = (*encoder.named_parameters(), *encoder.named_buffers())
        return {name: (tensor.device, tensor.data_ptr()) for name, tensor in tensors}

    before = held()
    assert {device.type for device, _ in before.values()} == {"cpu"}
    for prompt in ("a sign", "two signs"):
        assert model.encode_prompts([prompt]).embeds_BLE.device == STAND_IN
        assert held() == before
    move = encoder.to

    def move_a_part(device: torch.device) -> None:
        move(device)
        raise torch.OutOfMemoryError("2 GiB are missing")

    monkeypatch.setattr(encoder, "to", move_a_part)
    with pytest.raises(torch.OutOfMemoryError):
        model.encode_prompts(["three signs"])
    assert held() == before


def test_a_state_is_copied_once_on_its_way_off_the_device(asked: list[str], taken: list[torch.Tensor]):
    run = TinyRun(tiny_config(), OnStandIn(asked))
    taken.clear()
    state = run.policy.state()
    assert [value.ctypes.data for value in state.values()] == [copy.data_ptr() for copy in taken]


def test_a_part_of_a_state_is_taken_to_the_cpu(asked: list[str]):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        assert dist.group.WORLD is not None
        mesh = DeviceMesh.from_group(dist.group.WORLD, STAND_IN.type)
        weight = distribute_tensor(torch.zeros(5, 3), mesh, [Shard(0)], src_data_rank=None)
        policy: Any = SimpleNamespace(trained={"weight": weight})
        part = ShardedPolicy.shard(policy, {"weight": np.ones((5, 3), np.float32)})
    finally:
        dist.destroy_process_group()
    assert part["weight"].shape == (2, 3) and asked == ["wait"]


@pytest.fixture
def settings_restored() -> Iterator[None]:
    before = dict(os.environ)
    yield
    torch.use_deterministic_algorithms(False)
    deterministic.fill_uninitialized_memory = True  # pyright: ignore[reportAttributeAccessIssue]
    os.environ.clear()
    os.environ.update(before)


def test_a_model_on_a_gpu_computes_deterministically(
    monkeypatch: pytest.MonkeyPatch, settings_restored: None
):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")

    class Family:
        def load(self, settings: ModelConfig, device: torch.device) -> TinyModel:
            assert torch.are_deterministic_algorithms_enabled(), "before anything is on the GPU"
            return TinyModel()

    monkeypatch.setattr(loading, "family_of", lambda settings: Family())
    monkeypatch.setattr(loading, "device_of", lambda settings: torch.device("cuda"))
    loading.load_model(ModelConfig())
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:512"  # a person's own choice


def test_a_model_on_the_cpu_leaves_torch_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loading, "prepare_gpu", lambda: pytest.fail("nothing to prepare"))
    loading.load_model(ModelConfig(device="cpu"))
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_workers_are_forked_from_asks_for_no_gpu():
    """CUDA cannot be used in a fork of a process that has looked for a GPU."""
    code = """
import sys, torch
from gpu_runtime.cluster.fork_server import import_before_forks
def looked(*args, **kwargs):
    raise AssertionError("a GPU was looked for")
for name in ("is_available", "device_count", "_lazy_init", "get_device_name", "get_device_properties",
             "get_device_capability", "current_device", "is_bf16_supported"):
    setattr(torch.cuda, name, looked)
import_before_forks(sys.argv[1:])
assert torch.cuda.is_available is looked
"""
    _run(code, fork_client.IMPORTED)


def test_the_runtime_needs_neither_a_database_nor_a_server():
    """Where a GPU is lent without a network, all that is missing there has to be carried."""
    code = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
found = {"duckdb", "ray", "prefect", "streamlit", "fastapi", "typer"} & set(sys.modules)
assert not found, found
"""
    _run(code, [*fork_client.IMPORTED, "gpu_runtime.runtime", "gpu_runtime.cluster.local_cluster"])


def _run(code: str, arguments: Sequence[str]) -> None:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
