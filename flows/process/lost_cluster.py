"""The end of a run whose own cluster has lost processes, if its process lives long enough to report it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import psutil
from prefect.states import Crashed

from flows.process.run_guard import lost_head
from storage.clock import process_is_alive, process_start_s
from storage.errors import ClusterLostError, RuntimeFailure

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def names_what_ended(run_id: str, needed: Mapping[str, int], address: str = "") -> Iterator[None]:
    """Let an error of the runtime name the run and the processes of the cluster that ended.

    It may come before Ray's core ends this process without a word; then the run's guard says why.

    Args:
        needed: processes that the run cannot do without, pid by name.
        address: HOST:PORT of the head of the joined cluster; empty if the run joined none.

    Raises:
        ClusterLostError: the runtime failed, and one of these processes has ended, or the head does not
            answer.
        RuntimeFailure: it failed for another reason.
    """
    begun: dict[str, float | None] = dict.fromkeys(needed)
    for name, pid in needed.items():
        with suppress(psutil.NoSuchProcess):
            begun[name] = process_start_s(pid)
    try:
        yield
    except RuntimeFailure as error:
        go_on = f"go on with `spotlight resume {run_id}`"
        ended = [name for name, at_s in begun.items() if not process_is_alive(needed[name], at_s)]
        if ended:
            raise ClusterLostError(f"{error}: {' and '.join(ended)} ended; {go_on}") from error
        if (lost := lost_head(address, run_id)) is not None:
            raise ClusterLostError(f"{error}: {lost}") from error
        raise RuntimeFailure(f"{error}; {go_on}") from error


def crashes_with_its_cluster(do: Callable[P, R]) -> Callable[P, R]:
    """Wrap a flow's function: its flow run is Crashed if the cluster was lost; a caller gets the error."""

    @wraps(do)
    def done(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return do(*args, **kwargs)
        except ClusterLostError as error:
            crashed: Any = Crashed(message=str(error), data=error)
            return crashed

    # Prefect would look for the names of these types in this file.
    vars(done)["__signature__"] = inspect.signature(do, eval_str=True)
    return done
