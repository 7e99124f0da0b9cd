"""Weights that one worker offers to its neighbours: what an offer says, and how one is taken up.

A new worker takes its weights from a neighbour on its instance if it can, and from disk otherwise.
Whatever it takes is checked by checksum before a model sees it.

The road between two workers (shared memory, CUDA IPC) is a `WeightRoad`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from storage.errors import WeightsUnavailableError

_LOG = logging.getLogger(__name__)
_ROW, _ROWS = 512, 256  # words summed at a time: 1 MiB, which stays in a core's cache

State = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class WeightOffer:
    """Weights that a neighbour offers; picklable.

    Attributes:
        road: name of the way they go.
        instance: where they are; nobody else can take them.
        version: policy version.
        checksum: of the weights, by `weights_checksum`.
        size_bytes: of all tensors.
        place: what the road needs to find them.
    """

    road: str
    instance: str
    version: int
    checksum: str
    size_bytes: int
    place: Any


class WeightRoad(Protocol):
    """A way for weights from one process of an instance to another."""

    name: str

    def publish(self, state: State, instance: str, version: int) -> WeightOffer:
        """Offer weights to the neighbours until `withdraw`."""
        ...

    def take(self, offer: WeightOffer) -> dict[str, torch.Tensor]:
        """The offered weights, checked.

        Raises:
            WeightsUnavailableError: if they are gone or fail their checksum.
        """
        ...

    def withdraw(self, offer: WeightOffer) -> None:
        """This process needs the weights no more, as their donor or their taker."""
        ...


def take_or_load(
    offers: Iterable[WeightOffer],
    roads: Mapping[str, WeightRoad],
    instance: str,
    version: int,
    load: Callable[[], dict[str, torch.Tensor]],
) -> tuple[dict[str, torch.Tensor], WeightOffer | None]:
    """Weights from the first neighbour that has them whole, or else from disk.

    Args:
        offers: of anybody.
        roads: by name, those that work here.
        instance: where this worker is.
        version: the policy version wanted.
        load: reads that version from disk or network.

    Returns:
        The weights, and the offer that they came from; None for disk.
    """
    for offer in offers:
        if offer.instance != instance or offer.version != version or offer.road not in roads:
            continue
        try:
            return roads[offer.road].take(offer), offer
        except WeightsUnavailableError as error:
            _LOG.warning("weights of a neighbour were not taken: %s", error)
    return load(), None


def weights_checksum(state: State) -> str:
    """A checksum of weights that a device computes at the speed of its memory.

    Each tensor's bits are read as 64-bit words w and summed twice, as w and as w times (2 place + 1),
    modulo 2**64; names, types, shapes and sums go through BLAKE2b. One changed word changes it for
    certain, words in another order nearly so; it is no protection against intent.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        tensor = state[name]
        plain, placed = _sums(tensor)
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:{plain}:{placed};".encode())
    return digest.hexdigest()


def check_weights(state: State, offer: WeightOffer) -> None:
    """Refuse weights that are not those of the offer.

    Raises:
        WeightsUnavailableError: if the checksum differs.
    """
    found = weights_checksum(state)
    if found != offer.checksum:
        raise WeightsUnavailableError(
            f"weights of version {offer.version} from {offer.place!r} have the checksum {found}, not "
            f"{offer.checksum}; load them from disk"
        )


def size_bytes(state: State) -> int:
    """Bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def _sums(tensor: torch.Tensor) -> tuple[int, int]:
    octets = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    even = octets.numel() // (8 * _ROW) * 8 * _ROW
    head = octets[:even]
    # A mapped file's tensors begin where its header ends, which need not be a multiple of eight.
    head = head.clone() if head.data_ptr() % 8 else head
    tail = torch.zeros(8 * _ROW, dtype=torch.uint8, device=octets.device)
    tail[: octets.numel() - even] = octets[even:]
    factors = 2 * torch.arange(_ROW, device=octets.device) + 1
    plain = placed = torch.zeros((), dtype=torch.int64, device=octets.device)
    rows = 0
    for part in (*head.view(torch.int64).view(-1, _ROW).split(_ROWS), tail.view(torch.int64)[None]):
        # Word i counts 2i + 1 times: summed by columns and by rows, nothing as large as the part is made.
        row_sums = part.sum(dim=1)
        lines = torch.arange(rows, rows + len(part), device=octets.device)
        plain = plain + row_sums.sum()
        placed = placed + (part.sum(dim=0) * factors).sum() + (row_sums * (2 * _ROW * lines)).sum()
        rows += len(part)
    return int(plain), int(placed)
