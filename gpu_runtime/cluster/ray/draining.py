"""Ray's own drain of an instance that will be taken: it starts nothing more there.

The only place that uses these private parts of Ray. A drain cannot be taken back, and an instance that drains
ends itself once no worker is left on it.
"""

from __future__ import annotations

import ray
from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]
from ray.core.generated.autoscaler_pb2 import (
    DrainNodeReason,  # pyright: ignore[reportAttributeAccessIssue]
)
from ray.exceptions import RayError

_LIMIT_S = 5.0
"""For Ray's head to answer; the instance may have half a minute left."""


def drain_instance(instance: str, reason: str, deadline: float | None) -> str:
    """Drain a Ray node; the caller is a process of the cluster.

    Args:
        instance: its identifier.
        reason: in words, which Ray shows.
        deadline: when it may be gone, in unix seconds; None where that is not known.

    Returns:
        Why Ray does not do so; empty where it does.
    """
    preemption = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline_ms = 0 if deadline is None else int(deadline * 1000)
    try:
        head = GcsClient(address=ray.get_runtime_context().gcs_address)
        accepted, why_not = head.drain_node(instance, preemption, reason, deadline_ms, timeout=_LIMIT_S)
    except (RayError, RuntimeError) as error:  # a head that does not answer must not end the run
        return str(error)
    return "" if accepted else why_not
