"""Processes of a test that form one process group, forked from a server that has imported everything."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist

from gpu_runtime.sequence_parallel.control_store import StoreAddress
from gpu_runtime.sequence_parallel.process_group import InstanceGroup

CPU = torch.device("cpu")
TIMEOUT_S = 120.0

Work = Callable[..., Any]
"""Called in each process with the group and the arguments; what it returns comes back."""


def forking_context() -> ForkServerContext:
    """Starts processes that have imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.tiny_transformers", "tests.sharing_processes"])
    return context


def run_in_group(size: int, work: Work, *arguments: Any) -> list[Any]:
    """Let `size` processes form a group and do something; what each returned, by rank."""
    context = forking_context()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    address = StoreAddress("127.0.0.1", store.port)
    links: list[Connection] = []
    processes: list[BaseProcess] = []
    for rank in range(size):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_member, args=(theirs, address, rank, size, work, arguments), daemon=True
        )
        process.start()
        theirs.close()
        links.append(ours)
        processes.append(process)
    try:
        answers = []
        for link in links:
            assert wait([link], TIMEOUT_S), "a process of the group does not answer"
            answers.append(link.recv())
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    failures = [answer for answer in answers if isinstance(answer, str)]
    assert not failures, "\n".join(failures)
    return [answer[0] for answer in answers]


def _member(
    link: Connection, address: StoreAddress, rank: int, size: int, work: Work, arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    try:
        group = InstanceGroup(address.connect(TIMEOUT_S), "test", rank, size, TIMEOUT_S, CPU, lambda: False)
        link.send((work(group, *arguments),))
        dist.barrier(group=group.group)  # leaving cuts off members that still read
        group.close()
    except Exception as error:  # noqa: BLE001  (the test says it)
        link.send(f"rank {rank}: {type(error).__name__}: {error}")
