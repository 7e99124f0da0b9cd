"""Weights into a new process: from a neighbour's shared memory, and from disk."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from diffusers import QwenImageTransformer2DModel

from gpu_runtime.sequence_parallel.assigned_models import qwen_transformer_of
from gpu_runtime.sequence_parallel.shared_memory_weights import SharedMemoryWeights
from gpu_runtime.sequence_parallel.weight_offers import WeightOffer, weights_checksum

_CONFIG: dict[str, Any] = {
    "patch_size": 1, "in_channels": 32, "out_channels": 32, "num_layers": 8, "attention_head_dim": 96,
    "num_attention_heads": 4, "joint_attention_dim": 128, "axes_dims_rope": (32, 32, 32),
}  # fmt: skip


Taken = tuple[float, float]
"""Seconds on the wall, and seconds of the processor."""


class _Clock:
    def __init__(self) -> None:
        self._wall, self._busy = time.perf_counter(), time.process_time()

    def read(self) -> Taken:
        return time.perf_counter() - self._wall, time.process_time() - self._busy


def measure(folder: Path, repeats: int) -> dict[str, Any]:
    """Medians over fresh processes, from asking for the weights to a model that could compute.

    Both ways check the weights by checksum. The files are in the page cache.
    """
    torch.manual_seed(0)
    transformer: Any = QwenImageTransformer2DModel(**_CONFIG)
    transformer.save_pretrained(str(folder))
    road = SharedMemoryWeights()
    offer = road.publish(transformer.state_dict(), "instance", 0)
    config = dict(transformer.config)
    try:
        copied = [_in_new_process(_take, offer, config) for _ in range(repeats)]
        loaded = [_in_new_process(_load, offer, folder) for _ in range(repeats)]
    finally:
        road.withdraw(offer)
    return {
        "weight_copy_s": statistics.median(wall for wall, _ in copied),
        "weight_load_s": statistics.median(wall for wall, _ in loaded),
        "weight_copy_cpu_s": statistics.median(busy for _, busy in copied),
        "weight_load_cpu_s": statistics.median(busy for _, busy in loaded),
        "weight_bytes": offer.size_bytes,
    }


def _take(offer: WeightOffer, config: dict[str, Any]) -> Taken:
    clock = _Clock()
    road = SharedMemoryWeights()
    qwen_transformer_of(config, road.take(offer))
    took = clock.read()
    road.withdraw(offer)
    return took


def _load(offer: WeightOffer, folder: Path) -> Taken:
    clock = _Clock()
    transformer = QwenImageTransformer2DModel.from_pretrained(str(folder), low_cpu_mem_usage=False)
    assert isinstance(transformer, torch.nn.Module)
    assert weights_checksum(transformer.state_dict()) == offer.checksum
    return clock.read()


def _in_new_process(work: Callable[..., Taken], *arguments: Any) -> Taken:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(theirs, work, arguments))
    process.start()
    theirs.close()
    took = ours.recv()
    process.join()
    return took


def _send_result(link: Connection, work: Callable[..., Taken], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    link.send(work(*arguments))
