"""Keeps sequence-parallel groups at work while devices come, go and hang.

The controller lays out groups, numbers them, gives each a batch, and takes in what the leaders send
after every chunk of denoising steps: these are the commits. A batch whose group breaks goes on from
its last commit in another group, at whatever degree that one has.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from gpu_runtime.sequence_parallel.batches import Batch, Batches, States
from gpu_runtime.sequence_parallel.control_store import ControlStore
from gpu_runtime.sequence_parallel.epochs import EpochBook, NumberedGroup
from gpu_runtime.sequence_parallel.events import Event
from gpu_runtime.sequence_parallel.layout import Group, plan_layout
from gpu_runtime.sequence_parallel.local_members import MemberLink
from gpu_runtime.sequence_parallel.messages import (
    Advance,
    Advanced,
    Answer,
    Broken,
    Call,
    Called,
    Failed,
    Join,
    Ready,
    Stop,
)
from storage.errors import RuntimeFailure, SchedulingError

_PAST_GROUPS = 8
_SUSPICION_S = 0.05  # a group that broke without a known loss is given so long for the loss to show


@dataclass
class _Member:
    link: MemberLink
    instance: str
    ready: bool = False
    beat: bytes = b""
    beat_at_s: float = field(default_factory=time.monotonic)


class GroupController:
    """One event loop: call `poll` until what you wait for has happened.

    Args:
        store: where the members meet.
        start: starts a member's process.
        step_s: degree → measured seconds of a denoising step.
        at_once: batches that groups may work on at a time; None for no limit.
        chunk: denoising steps between commits.
        hang_s: a member that shows no life for so long is killed and counts as lost.
    """

    def __init__(
        self,
        store: ControlStore,
        start: Callable[[str], MemberLink],
        step_s: Mapping[int, float],
        at_once: int | None = 1,
        chunk: int = 1,
        hang_s: float = 5.0,
    ) -> None:
        self.store = store
        self.book = EpochBook()
        self._start = start
        self._step_s = dict(step_s)
        self._at_once = at_once
        self._chunk = chunk
        self._hang_s = hang_s
        self._members: dict[str, _Member] = {}
        self._work = Batches()
        self._pausing = False  # a planned change waits for the groups to come to a boundary
        self._suspects: dict[NumberedGroup, float] = {}
        self._past: deque[NumberedGroup] = deque(maxlen=_PAST_GROUPS)
        self._ending: list[MemberLink] = []
        self._looked_s = time.monotonic()
        self._events: list[Event] = []

    def add(self, name: str, instance: str = "instance", link: MemberLink | None = None) -> None:
        """Start a member; it joins between chunks once it is ready.

        Raises:
            SchedulingError: if there is one of this name.
        """
        if name in self._members:
            raise SchedulingError(f"member {name!r} is there already; remove it first")
        self._members[name] = _Member(link or self._start(name), instance)

    def remove(self, name: str) -> None:
        """Let a member go between chunks, as after a preemption notice."""
        member = self._members[name]
        member.ready = False
        self._plan_change()

    def process_id(self, name: str) -> int:
        """Of a member's process."""
        pid = self._members[name].link.process.pid
        assert pid is not None
        return pid

    def submit(self, states: States, total_steps: int) -> int:
        """Queue a batch; returns its number."""
        number = self._work.add(states, total_steps)
        self._give_work()
        return number

    def resize(self, step_s: Mapping[int, float], at_once: int | None = 1) -> None:
        """Lay out again by other step times, between chunks."""
        self._step_s, self._at_once = dict(step_s), at_once
        self._plan_change()

    def call(self, name: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function in a member's process, after what it was told before."""
        self._members[name].link.send(Call(function, arguments))

    def poll(self, timeout_s: float) -> list[Event]:
        """Handle what has come in, waiting for it at most `timeout_s`.

        Raises:
            RuntimeFailure: if a member failed in a way that no other group would help.
        """
        ends = {member.link.process.sentinel: name for name, member in self._members.items()}
        pipes = {member.link.connection: name for name, member in self._members.items()}
        if self._suspects:
            timeout_s = min(timeout_s, _SUSPICION_S)
        for source in wait([*ends, *pipes], min(timeout_s, self._hang_s / 4)):
            name = pipes.get(source) or ends[source]  # pyright: ignore[reportArgumentType]
            if source in pipes:
                self._read(name)
            elif name in self._members:
                self._lose(name, "its process ended")
        self._look_for_hung()
        self._reap()
        self._regroup_suspects()
        self._change_when_paused()
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """End all members; groups are broken off first, so that nobody waits for anybody."""
        for group in self.book.groups:
            self.store.abort(group.prefix)
        for member in self._members.values():
            member.link.send(Stop())
        for member in self._members.values():
            member.link.end(kill=False)
        for link in self._ending:
            link.end(kill=True)
        self._members.clear()
        self._ending.clear()

    def _read(self, name: str) -> None:
        member = self._members.get(name)
        if member is None:
            return
        try:
            answer: Answer = member.link.connection.recv()
        except (EOFError, OSError):
            self._lose(name, "its pipe closed")
            return
        if isinstance(answer, Failed):
            raise RuntimeFailure(f"member {name} cannot go on: {answer.reason}")
        if isinstance(answer, Ready):
            member.ready, member.beat_at_s = True, time.monotonic()
            self._tell("ready", name)
            self._plan_change()
        elif isinstance(answer, Called):
            self._tell("called", name, value=answer.value)
        elif self.book.counts(name, answer.epoch):
            group = self.book.group_of(name)
            assert group is not None
            if isinstance(answer, Broken):
                self._suspects.setdefault(group, time.monotonic())
            elif isinstance(answer, Advanced) and answer.states is not None:
                self._commit(group, answer.states)

    def _commit(self, group: NumberedGroup, states: States) -> None:
        batch = self._work.commit(group, states)
        if batch is None:
            return
        self._tell("step", group.leader, batch.number, len(group.members), group.epoch, states)
        if batch.finished:
            self._tell("finished", group.leader, batch.number, value=states)
        elif self._pausing:
            self._work.take_back(group)
        else:
            self._send_chunk(group, batch)
        self._give_work()

    def _lose(self, name: str, why: str) -> None:
        member = self._members.pop(name)
        group = self.book.group_of(name)
        if group is not None:
            self._suspects[group] = 0.0
            self.store.abort(group.prefix)  # first of all: peers are blocked
        for past in self._past:  # and some may still be taking leave of it
            if name in past.members:
                self.store.abort(past.prefix)
        member.link.process.kill()
        self._ending.append(member.link)  # reaped later: a large process takes its time to die
        self._tell("lost", name, value=why)
        self._regroup()
        self.store.forget_member(name)

    def _look_for_hung(self) -> None:
        now = time.monotonic()
        if now - self._looked_s < self._hang_s / 4:
            return
        self._looked_s = now
        for name, beat in self.store.beats(self._members).items():
            member = self._members[name]
            if beat != member.beat:
                member.beat, member.beat_at_s = beat, now
        silent = [n for n, m in self._members.items() if m.ready and now - m.beat_at_s > self._hang_s]
        for name in silent:
            self._lose(name, f"no sign of life for {self._hang_s} s")

    def _reap(self) -> None:
        for link in [link for link in self._ending if link.process.exitcode is not None]:
            self._ending.remove(link)
            link.end(kill=False)

    def _regroup_suspects(self) -> None:
        now = time.monotonic()
        if any(now - since > _SUSPICION_S for since in self._suspects.values()):
            self._regroup()

    def _plan_change(self) -> None:
        """Change at the next boundary: running chunks are finished, and no new ones begun."""
        self._pausing = True
        self._change_when_paused()

    def _change_when_paused(self) -> None:
        if self._pausing and not self._work.working():
            self._regroup()

    def _regroup(self) -> None:
        broken = tuple(self._suspects)
        self._suspects.clear()
        self._pausing = self._pausing and bool(self._work.working() - set(broken))
        live = {name: member.instance for name, member in self._members.items() if member.ready}
        before = [Group(self._instance_of(group), group.members) for group in self.book.groups]
        layout = plan_layout(live, self._step_s, before, self._at_once)
        change = self.book.follow(layout, broken)
        if change is not None:
            for group in change.dissolved:
                self._dissolve(group, group in broken)
            for group in change.formed:
                for name in group.members:
                    self._members[name].link.send(Join(group))
            for name in change.idle:
                self._release(name)
        self._give_work()

    def _instance_of(self, group: NumberedGroup) -> str:
        """The instance of a group, as long as one of its members lives."""
        known = (self._members[name].instance for name in group.members if name in self._members)
        return next(known, "")

    def _release(self, name: str) -> None:
        """A member of a dissolved group is in none now; one that is to be removed ends."""
        member = self._members.get(name)
        if member is not None:
            member.link.send(Join(None) if member.ready else Stop())

    def _dissolve(self, group: NumberedGroup, broken: bool) -> None:
        # In mid-chunk its members must not wait for each other: they go to different groups.
        if self._work.take_back(group) or broken:
            self.store.abort(group.prefix)
        self._past.append(group)
        self.store.ended(group.prefix)

    def _give_work(self) -> None:
        if not self._pausing:
            for group, batch in self._work.give(set(self.book.groups) - self._suspects.keys()):
                self._send_chunk(group, batch)

    def _send_chunk(self, group: NumberedGroup, batch: Batch) -> None:
        for member in group.members:
            self._members[member].link.send(Advance(group.epoch, batch.states, self._chunk))

    def _tell(
        self,
        kind: str,
        member: str,
        batch: int | None = None,
        degree: int | None = None,
        epoch: int | None = None,
        value: Any = None,
    ) -> None:
        self._events.append(Event(kind, time.monotonic(), member, batch, degree, epoch, value))
