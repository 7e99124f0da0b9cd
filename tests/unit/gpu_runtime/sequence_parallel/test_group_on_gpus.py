"""A group on GPUs, tested without one: torch's backend `fake` stands for NCCL; its collectives do nothing.

A collective of NCCL returns before its kernel has ended, and one that is aborted ends without an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gpu_runtime.scheduling.group_layout import WorkerGroup
from gpu_runtime.sequence_parallel.control_store import ControlStore
from gpu_runtime.sequence_parallel.member import SequenceParallelMember
from gpu_runtime.sequence_parallel.process_group import InstanceGroup, interrupt
from storage.errors import DeviceFaultError, GroupBrokenError, NonFiniteError
from tests.running_up import wait_until
from tests.tiny_model import TinyModel

GPU = torch.device("cuda")
LIMIT_S = 60.0


@pytest.fixture
def formed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The arguments of each `init_process_group`, with torch's environment variables at that moment."""
    asked: list[dict[str, Any]] = []
    init = dist.init_process_group

    def form(backend: str, device_id: torch.device | None = None, **arguments: Any) -> None:
        names = [name for name in os.environ if name.startswith("TORCH_")]
        settings = {name: os.environ[name] for name in names}
        asked.append({"backend": backend, "device": device_id, **arguments, **settings})
        init("fake", **arguments)

    from torch.testing._internal.distributed import fake_pg  # registers the backend

    assert fake_pg
    monkeypatch.setattr("os.environ", os.environ.copy())
    monkeypatch.setattr(dist, "init_process_group", form)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    yield asked
    if dist.is_initialized():
        dist.destroy_process_group()


def group_of_two(store: dist.Store, called_off: Callable[[], bool] = lambda: False) -> InstanceGroup:
    dist.PrefixStore("g/", store).set("here/1", "")  # the other member
    return InstanceGroup(store, "g/", 0, 2, LIMIT_S, GPU, called_off)


def test_members_meet_before_they_connect_and_torch_ends_no_process(
    formed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # as other programs need it
    with pytest.raises(GroupBrokenError, match="was not formed"):  # the other member does not come
        InstanceGroup(dist.HashStore(), "g/", 0, 2, 0.1, GPU, lambda: False)
    assert not formed
    group_of_two(dist.HashStore())
    (asked,) = formed
    assert (asked["backend"], asked["device"]) == ("nccl", torch.device("cuda", 0))
    assert asked["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == asked["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0"


@pytest.mark.parametrize("aborted", [True, False])
def test_a_group_that_is_called_off_is_aborted_and_another_one_can_be_formed(
    formed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, aborted: bool
):
    off = False
    group = group_of_two(dist.HashStore(), lambda: off)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: pytest.fail("it would wait for the others"))
    off = True
    if aborted:  # by the thread that watches
        interrupt(GPU)
        monkeypatch.undo()
    group.close()
    assert not dist.is_initialized()
    interrupt(GPU)  # no group is left


class ClearedMeanwhile(dict[Any, str]):
    """torch's names of groups, cleared by another thread's abort between a listing and a look-up."""

    def __getitem__(self, group: Any) -> str:
        self.clear()
        return super().__getitem__(group)


def test_threads_that_abort_a_group_at_the_same_time_do_not_end_the_run(
    formed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    group_of_two(dist.HashStore())
    names = ClearedMeanwhile(dist.distributed_c10d._world.pg_names)
    assert names
    with monkeypatch.context() as racing:
        racing.setattr(dist.distributed_c10d, "_pg_names", names)
        interrupt(GPU)
    assert not names


class Membership:
    """A member of groups of two, whose other member only meets it."""

    def __init__(self) -> None:
        self._store = ControlStore()
        model: Any = TinyModel()
        model.device = GPU
        self.member = SequenceParallelMember("a", model, self._store.address, LIMIT_S)

    def join(self, epoch: int) -> WorkerGroup:
        place = WorkerGroup(epoch, 0, ("a", "b"))
        dist.PrefixStore(place.prefix, self._store._store).set("here/1", "")
        self.member.join(place, LIMIT_S)
        return place

    def call_off(self, place: WorkerGroup, error: Exception | None = None) -> str:
        self._store.abort(place.prefix)
        wait_until("it is called off", lambda: self.member._watch.broken)
        if error is not None:
            raise error
        return "the answer"


def fail(error: Exception) -> None:
    raise error


def test_what_is_received_in_a_group_that_is_called_off_does_not_count(formed: list[dict[str, Any]]):
    one = Membership()
    for epoch, error in enumerate((None, NonFiniteError("latents are not finite")), 1):
        place = one.join(epoch)
        assert one.member.together(epoch, lambda: "done") == "done"
        with pytest.raises(GroupBrokenError, match=f"the group of epoch {epoch} broke at a"):
            one.member.together(epoch, lambda place=place, error=error: one.call_off(place, error))
        assert one.member.epoch is None and not dist.is_initialized()
    one.join(3)
    with pytest.raises(NonFiniteError):  # of a group that stands it is an error of the model
        one.member.together(3, lambda: fail(NonFiniteError("latents are not finite")))
    one.member.leave()
    assert not dist.is_initialized()


def test_a_faulty_device_is_lost_even_if_its_group_is_called_off(formed: list[dict[str, Any]]):
    one = Membership()
    place = one.join(1)
    with pytest.raises(DeviceFaultError, match="2 GiB are missing"):
        one.member.together(1, lambda: one.call_off(place, DeviceFaultError("2 GiB are missing")))
    one.member.leave()


def test_a_member_whose_collective_fails_leaves_without_waiting_for_the_others(
    formed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    one = Membership()
    one.join(1)
    with monkeypatch.context() as no_wait:
        no_wait.setattr(dist, "destroy_process_group", lambda: pytest.fail("it would wait for the others"))
        with pytest.raises(GroupBrokenError, match="broke at a: NCCL error"):
            one.member.together(1, lambda: fail(dist.DistError("NCCL error\nremote process exited")))
    assert not one.member._watch.broken and not dist.is_initialized()
