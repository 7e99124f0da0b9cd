"""Training on several devices: a policy whose weights are divided over processes (FSDP2), and its trainer.

Each process holds a part of every weight, gathers a block's weights when that block computes, and releases
them again. All processes must then do the same things in the same order: each forward pass, `state`, and
`load` of the same weights. Between `gather` and `divide`, each process has all weights beside its part, so
forward passes, `state` and `load` need no other process, and each process generates by itself.

Every process gets all samples and computes every n-th batch; gradients are summed. Means, the ratio check,
the gradient's norm and therefore all decisions are the same in all processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.learning.gradient_shards import Batches, ShardSum
from gpu_runtime.learning.objectives.protocol import BatchTerms, TrainingSample
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.learning.sharding import local_shard, sharded_like
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.learning.weights import WeightState
from gpu_runtime.models.protocol import DiffusionModel
from storage.config.run_config import AdaptationConfig, RunConfig


class ShardedPolicy(Policy):
    """A policy over the processes of a group; it computes the same as `Policy`.

    Adapters are added before the weights are divided, so they are divided too, as are the frozen weights,
    which are the largest part.

    Args:
        model: loaded model with the same weights in every process, on this process's device.
        keeps_reference, adapter, adapter_is_reference: as for `Policy`; every process reads the same file.
    """

    def __init__(
        self,
        model: DiffusionModel,
        adaptation: AdaptationConfig,
        seed: int,
        group: dist.ProcessGroup,
        keeps_reference: bool = True,
        adapter: str = "",
        adapter_is_reference: bool = False,
    ) -> None:
        self.group = group
        self.is_gathered = False
        super().__init__(model, adaptation, seed, keeps_reference, adapter, adapter_is_reference)

    def gather(self) -> None:
        """Gather all weights here, to generate with; a collective. `divide` releases them."""
        if self.is_gathered:
            return
        self._root.set_reshard_after_forward(False)
        for module in self._parts:
            module.unshard()
        self.is_gathered = True

    def divide(self) -> None:
        """Release all weights except this process's shard, to train."""
        if not self.is_gathered:
            return
        # It also forgets the last forward passes: FSDP prefetches weights in the order of their last use,
        # and each process had different passes.
        self._root.reset_iter_state()
        self._root.set_reshard_after_forward(True)
        self.is_gathered = False

    def read(self, name: str) -> np.ndarray:
        """Return a copy of one trained weight; a collective while they are divided."""
        if not self.is_gathered:
            return super().read(name)
        weight = self.model.transformer.get_parameter(name)
        # Copied first: numpy would pin the memory that `divide` releases.
        return weight.detach().to("cpu", torch.float32, copy=True).numpy()

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Replace the trained weights; every process must be given the same.

        Raises:
            ModelError: if names or shapes differ from this policy's; then no weight has changed.
        """
        super().load(state)
        if not self.is_gathered:
            return
        here = dict(self.model.transformer.named_parameters())
        with torch.no_grad():
            for name in self.trained:
                here[name].copy_(torch.from_numpy(np.array(state[name])))

    def full_state(self, local: Mapping[str, np.ndarray]) -> WeightState:
        """Return the whole state from every process's part; a collective."""
        full: WeightState = {}
        for name in local:
            weight = self.trained[name]
            assert isinstance(weight, DTensor)
            shard = torch.from_numpy(local[name]).to(self.model.device)
            sharded = DTensor.from_local(
                shard, weight.device_mesh, weight.placements,
                run_check=False, shape=weight.shape, stride=weight.stride(),
            )  # fmt: skip
            full[name] = sharded.full_tensor().cpu().numpy()
        return full

    def shard(self, full: Mapping[str, np.ndarray]) -> WeightState:
        """Return this process's part of a state."""
        parts = {
            name: local_shard(sharded_like(torch.from_numpy(np.array(full[name])), weight))
            for name, weight in self.trained.items()
        }
        return {name: part.cpu().numpy().copy() for name, part in parts.items()}

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Make the model the reference policy within this context."""
        with super().reference():
            # peft marks disabled adapters as frozen, and FSDP records that at its first pass.
            for weight in self.trained.values():
                weight.requires_grad_(True)
            yield

    def _prepare(self, transformer: torch.nn.Module) -> None:
        mesh = DeviceMesh.from_group(self.group, self.model.device.type)
        names = set(getattr(transformer, "_no_split_modules", None) or ())
        blocks = [module for module in transformer.modules() if type(module).__name__ in names]
        # Reshard after the forward pass, even the outermost module: weights that stayed gathered would
        # be stale after `load` or a visit to the reference.
        for module in (*blocks, transformer):
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
        self._parts = [module for module in transformer.modules() if isinstance(module, FSDPModule)]
        assert isinstance(transformer, FSDPModule)
        self._root: FSDPModule = transformer
        for module in self._parts:
            # Sum all processes' gradients instead of averaging: each row of an update is divided by
            # the number of rows of all. Also, gloo supports plain sums only.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        # FSDP would do this in its first forward pass, but `divide` may come before that.
        self._root._get_fsdp_state()._lazy_init()


class ShardedTrainer(Trainer):
    """A trainer with its process's part of the optimiser and of the moving average.

    A process that fails during an update leaves the others waiting until they are ended or the group times
    out.
    """

    def __init__(self, policy: ShardedPolicy, sampler: Sampler, config: RunConfig) -> None:
        self._divided, self._group = policy, policy.group
        super().__init__(policy, sampler, config)
        self._device = policy.model.device

    def add(self, samples: Sequence[TrainingSample]) -> None:
        """Add whole prompt groups; the weights are divided afterwards.

        Raises:
            TrainingError: as for one process; all processes raise the same.
        """
        self._divided.divide()
        super().add(samples)

    def finish(self) -> TrainingReport:
        """Take the training steps; the weights are divided afterwards. It fails as `add` does."""
        self._divided.divide()
        return super().finish()

    def _batches(self, shards: Sequence[int]) -> Batches:
        return Batches(
            self._config.sampling.batch_size, self._group.size(), (self._group.rank(),), together=True
        )

    def _total(self, update: int) -> ShardSum:
        """Return the sum of all processes' batches, whose gradients FSDP has summed, and the terms of all."""
        accumulation = self._first if not update else self._accumulation(self._shards)
        if update:
            accumulation.add(self._samples()[update])
        (own,) = accumulation.take((self._group.rank(),)).values()
        found = torch.tensor(own.terms, dtype=torch.float64).to(self._device)
        gathered = [torch.empty_like(found) for _ in range(self._group.size())]
        dist.all_gather(gathered, found, group=self._group)
        terms_N8 = torch.stack(gathered).cpu()
        sums = BatchTerms(*terms_N8.sum(dim=0).tolist())
        return ShardSum(own.gradient, sums._replace(deviation=float(terms_N8[:, 3].max())))
