"""Gradients of a model whose sequences are shared: the sum of what the members found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.distributed as dist


def sum_gradients(parameters: Iterable[torch.nn.Parameter], group: dist.ProcessGroup | None = None) -> None:
    """Replace each gradient by its sum over the group, one collective for each dtype and device.

    Each member's gradient covers its own tokens only; the loss is the same for all, so their sum is
    the gradient of one process (not the mean). Where gradients are then averaged by something else,
    multiply them by the degree.

    Args:
        parameters: those of the model, in the same order on each member. Those without a gradient are
            left out, and must be so on all members.
        group: the members; the default group by default.
    """
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            kinds[parameter.grad.dtype, parameter.grad.device].append(parameter.grad)
    with torch.no_grad():
        for gradients in kinds.values():
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(flat, group=group)
            for gradient, summed in zip(
                gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True
            ):
                gradient.copy_(summed.view_as(gradient))
