"""Weights from one GPU process of an instance to another by CUDA IPC.

NOT TESTED: no machine with GPUs was at hand. Written after torch's own sharing of CUDA tensors
between processes; the donor must live, and hold its tensors, until all takers have copied.
"""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import reduce_tensor

from gpu_runtime.sequence_parallel.weight_offers import (
    State,
    WeightOffer,
    check_weights,
    size_bytes,
    weights_checksum,
)
from storage.errors import WeightsUnavailableError


class CudaIpcWeights:
    """A road between GPU processes (`WeightRoad`); takers copy into memory of their own.

    Args:
        device: the taker's.
    """

    name = "cuda-ipc"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._published: dict[str, dict[str, torch.Tensor]] = {}  # checksum → tensors kept alive

    def publish(self, state: State, instance: str, version: int) -> WeightOffer:
        """Offer tensors that lie on a GPU; they must not change until `withdraw`.

        Raises:
            WeightsUnavailableError: if one of them lies elsewhere.
        """
        elsewhere = sorted(name for name, tensor in state.items() if tensor.device.type != "cuda")
        if elsewhere:
            raise WeightsUnavailableError(
                f"CUDA IPC shares tensors on a GPU, but {elsewhere[0]} and {len(elsewhere) - 1} more are on "
                "none; use shared memory"
            )
        tensors = {name: tensor.detach() for name, tensor in state.items()}
        checksum = weights_checksum(tensors)
        self._published[checksum] = tensors
        handles = {name: reduce_tensor(tensor) for name, tensor in tensors.items()}
        return WeightOffer(self.name, instance, version, checksum, size_bytes(tensors), handles)

    def take(self, offer: WeightOffer) -> dict[str, torch.Tensor]:
        """Copy the donor's tensors to this device and check the copies.

        Raises:
            WeightsUnavailableError: if the donor is gone or the checksum differs.
        """
        copies = {}
        try:
            for name, (rebuild, arguments) in offer.place.items():
                shared = rebuild(*arguments)
                copies[name] = shared.to(self._device, copy=True)
                torch.cuda.synchronize(self._device)
                del shared  # the donor's memory is free for it again
        except RuntimeError as error:
            raise WeightsUnavailableError(f"the donor's GPU memory cannot be opened: {error}") from error
        check_weights(copies, offer)
        return copies

    def withdraw(self, offer: WeightOffer) -> None:
        """The donor keeps the tensors no longer; takers have copies."""
        self._published.pop(offer.checksum, None)
