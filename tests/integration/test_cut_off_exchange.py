"""A member whose peer is killed in the midst of a large message is freed, and goes on in another group."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest
import torch
import torch.distributed as dist

from gpu_runtime.sequence_parallel.control_store import StoreAddress
from gpu_runtime.sequence_parallel.process_group import InstanceGroup
from storage.errors import GroupBrokenError
from tests.sharing_processes import CPU, TIMEOUT_S, forking_context

pytestmark = pytest.mark.xdist_group("sharing")

FLOATS = 16 << 20
"""Of a message: gloo takes tens of milliseconds for it, and next to nothing between two."""

ATTEMPTS = 30
LATER_S = 0.02
"""By so much later than the last attempt each one strikes, until a moment is in the midst of a message."""

FREED_S = TIMEOUT_S / 2


def exchange_until_the_end(group: InstanceGroup, link: Connection) -> str:
    parts = torch.ones(2, FLOATS)
    group.exchange(parts)
    link.send("under way")
    try:
        while True:
            group.exchange(parts)
    except RuntimeError as error:
        return type(error).__name__


def member(link: Connection, address: StoreAddress, rank: int) -> None:
    """Form groups that the parent names, until a peer is gone or the parent has a message."""
    torch.set_num_threads(1)
    store = address.connect(TIMEOUT_S)
    while name := link.recv():
        group = InstanceGroup(store, f"{name}/", rank, 2, TIMEOUT_S, CPU, link.poll)
        error = exchange_until_the_end(group, link)
        group.close()
        link.send(error)


def test_a_peer_killed_in_the_midst_of_a_message_holds_no_member_up():
    context = forking_context()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    address = StoreAddress("127.0.0.1", store.port)

    def start(rank: int) -> tuple[BaseProcess, Connection]:
        ours, theirs = context.Pipe()
        process = context.Process(target=member, args=(theirs, address, rank), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    survivor, link = start(0)
    processes, said = [survivor], [""]
    link.send("group-0")
    for attempt in range(ATTEMPTS):
        peer, peer_link = start(1)
        processes.append(peer)
        peer_link.send(f"group-{attempt}")
        for end in (link, peer_link):
            assert end.poll(TIMEOUT_S) and end.recv() == "under way"
        if said[-1] == GroupBrokenError.__name__:
            break  # it was freed, and works with another peer
        time.sleep(LATER_S * attempt)
        peer.kill()
        peer.join()
        if link.poll(0.5):  # killed between two messages: gloo sees that, and no one need call the group off
            said.append(link.recv())
            link.send(f"group-{attempt + 1}")
            continue
        link.send(f"group-{attempt + 1}")
        assert link.poll(FREED_S), "not freed"
        said.append(link.recv())
    else:
        pytest.fail(f"never struck in the midst of a message: {said}")
    for process in processes:
        process.kill()
