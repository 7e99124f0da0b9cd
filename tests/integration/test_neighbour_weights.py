"""Weights from a neighbour on the instance: whole and checked, or else from disk; nothing is left over."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gpu_runtime.models.embedded import EmbeddedModel
from gpu_runtime.sequence_parallel.assigned_models import qwen_transformer_of
from gpu_runtime.sequence_parallel.cuda_ipc_weights import CudaIpcWeights
from gpu_runtime.sequence_parallel.shared_memory_weights import SharedMemoryWeights, sweep
from gpu_runtime.sequence_parallel.weight_offers import WeightOffer, take_or_load, weights_checksum
from storage.errors import ModelError, WeightsUnavailableError
from tests.tiny_transformers import inputs_of


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(3, 5, generator=draw),
        "b": torch.randn(7, generator=draw).to(torch.bfloat16),
        "c": torch.tensor(2.5),
        "large": torch.randn(300_001, generator=draw),
    }


def publish_and_be_killed(folder: Path, link) -> None:
    offer = SharedMemoryWeights(folder).publish(state(), "i", 3)
    link.send(offer)
    os.kill(os.getpid(), signal.SIGKILL)


def offer_of_a_dead_donor(folder: Path) -> WeightOffer:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=publish_and_be_killed, args=(folder, theirs))
    process.start()
    offer = ours.recv()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    return offer


def test_weights_outlive_their_donor_and_go_when_nobody_holds_them(tmp_path: Path):
    offer = offer_of_a_dead_donor(tmp_path)
    road = SharedMemoryWeights(tmp_path)
    taken = road.take(offer)
    assert all(torch.equal(taken[name], tensor) for name, tensor in state().items())
    assert sweep(tmp_path) == [], "somebody holds them"
    road.withdraw(offer)
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(taken["large"], state()["large"]), "what is mapped stays"


def test_weights_of_killed_workers_are_swept(tmp_path: Path):
    offer = offer_of_a_dead_donor(tmp_path)
    assert sweep(tmp_path) == [Path(offer.place).name]
    with pytest.raises(WeightsUnavailableError, match="no weights at"):
        SharedMemoryWeights(tmp_path).take(offer)


def test_the_donor_keeps_them_for_others_until_it_withdraws(tmp_path: Path):
    donor, taker = SharedMemoryWeights(tmp_path), SharedMemoryWeights(tmp_path)
    offer = donor.publish(state(), "i", 1)
    taker.take(offer)
    taker.withdraw(offer)
    assert len(list(tmp_path.iterdir())) == 1
    donor.withdraw(offer)
    donor.withdraw(offer)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", [200, -5])
def test_one_changed_bit_is_found(tmp_path: Path, place: int):
    donor = SharedMemoryWeights(tmp_path)
    offer = donor.publish(state(), "i", 1)
    path = Path(offer.place)
    content = bytearray(path.read_bytes())
    at = place if place < 0 else len(content) // 2 + place
    content[at] ^= 1
    path.write_bytes(content)
    loaded, source = take_or_load([offer], {donor.name: SharedMemoryWeights(tmp_path)}, "i", 1, state)
    assert source is None, "so they come from disk"
    assert torch.equal(loaded["large"], state()["large"])


def test_only_neighbours_offers_of_the_wanted_version_are_taken(tmp_path: Path):
    donor = SharedMemoryWeights(tmp_path)
    old, new = donor.publish(state(1), "i", 1), donor.publish(state(2), "i", 2)
    roads = {donor.name: SharedMemoryWeights(tmp_path)}
    assert take_or_load([old, new], roads, "i", 2, state)[1] == new
    assert take_or_load([old, new], roads, "elsewhere", 2, state)[1] is None
    assert take_or_load([old, new], roads, "i", 3, state)[1] is None
    assert take_or_load([old, new], {}, "i", 2, state)[1] is None
    for offer in (old, new):
        donor.withdraw(offer)


def test_a_checksum_knows_names_places_types_and_shapes():
    base = state()
    found = {weights_checksum(base)}
    swapped = dict(base) | {"large": base["large"].flip(0)}
    renamed = {("z" if name == "a" else name): tensor for name, tensor in base.items()}
    shaped = dict(base) | {"a": base["a"].reshape(5, 3)}
    typed = dict(base) | {"b": base["b"].view(torch.float16)}
    for other in (swapped, renamed, shaped, typed):
        found.add(weights_checksum(other))
    assert len(found) == 5
    assert weights_checksum({name: tensor.clone() for name, tensor in base.items()}) in found


def test_a_transformer_around_a_neighbours_weights_computes_the_same_bits(tmp_path: Path):
    model = EmbeddedModel.load("embedded:glyphs")
    donor, taker = SharedMemoryWeights(tmp_path), SharedMemoryWeights(tmp_path)
    offer = donor.publish(model.transformer.state_dict(), "i", 1)
    taken = taker.take(offer)
    built: Any = model.transformer
    config: dict[str, Any] = dict(built.config)
    transformer = qwen_transformer_of(config, taken)
    name, parameter = next(iter(transformer.named_parameters()))
    assert parameter.data_ptr() == taken[name].data_ptr(), "no copy"
    inputs = inputs_of("embedded")
    with torch.no_grad():
        assert torch.equal(transformer(**inputs)[0], model.transformer(**inputs)[0])
    for road in (donor, taker):
        road.withdraw(offer)
    with pytest.raises(ModelError, match="do not fit"):
        qwen_transformer_of(config, {"stranger": torch.zeros(1)})


def test_too_little_shared_memory_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpu_runtime.sequence_parallel.shared_memory_weights._free_bytes", lambda _: 10)
    with pytest.raises(WeightsUnavailableError, match="10 bytes free"):
        SharedMemoryWeights(tmp_path).publish(state(), "i", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_torn_file_is_refused(tmp_path: Path):
    donor = SharedMemoryWeights(tmp_path)
    offer = donor.publish(state(), "i", 1)
    save_file({"a": torch.zeros(1)}, offer.place)
    with pytest.raises(WeightsUnavailableError, match="checksum"):
        SharedMemoryWeights(tmp_path).take(offer)
    Path(offer.place).write_bytes(b"torn")
    with pytest.raises(WeightsUnavailableError, match="cannot be read"):
        SharedMemoryWeights(tmp_path).take(offer)


def test_cuda_ipc_refuses_tensors_that_are_on_no_gpu():
    with pytest.raises(WeightsUnavailableError, match="on a GPU"):
        CudaIpcWeights(torch.device("cuda")).publish(state(), "i", 1)
