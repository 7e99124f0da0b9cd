"""Saving a trainer's complete state as bytes and restoring it, to the bit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from safetensors.numpy import load, save

from gpu_runtime.learning.sharding import gathered, sharded_like
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.learning.weights import refuse_not_finite
from storage.errors import CheckpointError

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def trainer_blobs(trainer: Trainer) -> dict[str, bytes]:
    """Return weights, moving average and optimiser moments, one safetensors file each.

    If the weights are divided over processes this is a collective, and each process gets everything.

    Raises:
        TrainingError: if a number in it is not finite, which would make the checkpoint useless.
    """
    names = list(trainer.policy.trained)
    moments: dict[str, np.ndarray] = {}
    for name, weight in trainer.policy.trained.items():
        # A weight that never had a gradient has no moments. They are sorted: gathering is a collective, and
        # the order of a file's tensors differs between processes.
        for moment, value in sorted(trainer.optimizer.state.get(weight, {}).items()):
            moments[f"{moment}/{name}"] = gathered(value.detach()).cpu().numpy()
    counts = {"training_steps": np.array([trainer.average.training_steps], np.int64)}
    assert all("/" not in name for name in names)
    parts = {
        "weights": trainer.policy.state(),
        "average": trainer.average_state(),
        "optimizer": moments | counts,
    }
    for part, state in parts.items():
        refuse_not_finite(
            state, f"the checkpoint's {part}, after training step {trainer.average.training_steps}"
        )
    return {f"{part}.safetensors": save(state) for part, state in parts.items()}


def restore_trainer(trainer: Trainer, blobs: Mapping[str, bytes]) -> None:
    """Restore the state that `trainer_blobs` saved.

    Raises:
        CheckpointError: if a part is missing.
        ModelError: if the weights do not fit the model.
    """
    missing = {"weights.safetensors", "average.safetensors", "optimizer.safetensors"} - blobs.keys()
    if missing:
        raise CheckpointError(f"the checkpoint lacks {sorted(missing)}; resume from an earlier one")
    trainer.policy.load(load(bytes(blobs["weights.safetensors"])))
    moments = load(bytes(blobs["optimizer.safetensors"]))
    average = trainer.policy.shard(load(bytes(blobs["average.safetensors"])))
    trainer.average.load(average, int(moments.pop("training_steps")[0]))
    trainer.optimizer.state.clear()
    for key, value in moments.items():
        moment, name = key.split("/", 1)
        weight = trainer.policy.trained.get(name)
        if moment not in _MOMENTS or weight is None:
            raise CheckpointError(f"the optimiser's state names {key!r}, which this model lacks")
        # The step counter stays on the CPU, as AdamW keeps it.
        restored = torch.from_numpy(np.array(value))
        if moment != "step":
            restored = sharded_like(restored.to(weight.device), weight)
        trainer.optimizer.state[weight][moment] = restored
