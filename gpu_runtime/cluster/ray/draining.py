"""Ray's own drain of an instance that will be taken: it starts nothing more there.

The only place that uses these private parts of Ray. A drain cannot be taken back, and an instance that drains
ends itself once no worker is left on it.
"""

from __future__ import annotations

from collections.abc import Collection

import ray
from ray._private.state import state
from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]
from ray.core.generated.autoscaler_pb2 import (
    DrainNodeReason,  # pyright: ignore[reportAttributeAccessIssue]
)

_LIMIT_S = 5.0
"""For Ray's head to answer; who asks may have half a minute left."""


def drain_this_instance(reason: str, deadline: float | None) -> None:
    """Drain the Ray node that this process is on.

    Args:
        reason: in words, which Ray shows.
        deadline: when it may be gone, in unix seconds; None where that is not known.

    Raises:
        RuntimeError: Ray's head refuses it, or does not answer.
    """
    here = ray.get_runtime_context()
    accepted, why_not = GcsClient(address=here.gcs_address).drain_node(
        here.get_node_id(),
        DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
        reason,
        0 if deadline is None else int(deadline * 1000),
        timeout=_LIMIT_S,
    )
    if not accepted:
        raise RuntimeError(f"Ray does not drain this instance: {why_not}")


def draining_instances() -> Collection[str]:
    """The Ray nodes that drain; the caller is a process of the cluster."""
    return state.get_draining_nodes()
