"""How the GPUs of a cluster are divided between the workers and the scorers. Pure."""

from __future__ import annotations

import math

_SMALLEST = 10_000
"""Ray counts shares of a GPU in ten-thousandths."""


def worker_share(workers: int, gpus: float, scorers: float = 0.0) -> float:
    """The share of a GPU that each worker takes, beside the scorers.

    Whole GPUs are left to the workers as far as they go: as many on each as it takes, none split. What the
    scorers need is kept free for them, on GPUs of their own where there are several.

    Args:
        workers: how many there are.
        gpus: of the cluster.
        scorers: sum of the scorers' shares.

    Returns:
        The share; 0 where no GPU is left, for scorers then need all of them.
    """
    left = gpus - scorers
    if left <= 0 or not workers:
        return 0.0
    if left < 1:  # one GPU for all
        return math.floor(left / workers * _SMALLEST) / _SMALLEST
    return 1 / math.ceil(workers / math.floor(left))
