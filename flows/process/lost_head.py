"""The check that the head of a joined Ray cluster still answers, and how the run continues otherwise."""

from __future__ import annotations

import socket

_ANSWER_S = 5.0
"""Seconds for the head of a joined cluster to accept a connection."""


def lost_head(address: str, run_id: str) -> str | None:
    """Return a message about a head that does not answer; None if it answers or none was joined.

    Args:
        address: HOST:PORT of the head; one of another form (empty, `auto`) is not asked.
        run_id: the run that has joined it.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except OSError:
        return (
            f"the head of the Ray cluster at {address} does not answer any more; start it again and go on "
            f"with `spotlight resume {run_id}`, or go on elsewhere with `spotlight resume {run_id} "
            "--ray-address HOST:PORT`; on a machine without this home, set SPOTLIGHT_CHECKPOINT__MIRROR to "
            "the run's checkpoint.mirror and add --take-over"
        )
    return None
