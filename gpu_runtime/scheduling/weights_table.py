"""Who holds which policy version, and who gets it from whom. Pure: no clock, no Ray, no torch.

A version that some phase needs keeps at least one copy: the last one may not be dropped, and one that is
being read from may not be either. A copy is lost all the same when its worker is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from storage.errors import SchedulingError


class Transfer(NamedTuple):
    """A version on its way between two workers."""

    source: str
    version: int


class Departure(NamedTuple):
    """What a worker's end left behind.

    Attributes:
        interrupted: workers that were reading from it and must begin anew.
        lost: needed versions that nobody holds any more: only a checkpoint has them.
    """

    interrupted: tuple[str, ...]
    lost: tuple[int, ...]


@dataclass
class _Worker:
    instance: str
    versions: set[int] = field(default_factory=set)
    receiving: Transfer | None = None
    readers: dict[str, int] = field(default_factory=dict)  # worker that reads from it → version


class WeightsTable:
    """Copies of policy versions on workers, transfers under way, and the versions that phases need."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._holders: dict[int, set[str]] = {}
        self._pins: dict[int, set[str]] = {}

    def join(self, worker: str, instance: str) -> None:
        """A worker is there; it holds nothing yet.

        Raises:
            SchedulingError: if it is there already.
        """
        if worker in self._workers:
            raise SchedulingError(f"worker {worker!r} is in the table; report it gone before it joins again")
        self._workers[worker] = _Worker(instance)

    def put(self, worker: str, version: int) -> None:
        """A worker holds a version that it made itself, or read from storage.

        Raises:
            SchedulingError: if the worker is unknown.
        """
        self._known(worker).versions.add(version)
        self._holders.setdefault(version, set()).add(worker)

    def holders(self, version: int) -> tuple[str, ...]:
        """Workers with a whole copy, by name."""
        return tuple(sorted(self._holders.get(version, ())))

    def versions(self, worker: str) -> tuple[int, ...]:
        """Versions of which a worker has a whole copy, oldest first; none when it is unknown."""
        return tuple(sorted(self._workers[worker].versions)) if worker in self._workers else ()

    def reading_from(self, worker: str) -> int:
        """Transfers under way out of a worker; 0 when it is unknown."""
        return len(self._workers[worker].readers) if worker in self._workers else 0

    def nearest(self, version: int, instance: str) -> str | None:
        """Whom a worker of `instance` should read a version from; looks at every holder once.

        Returns:
            A holder on the same instance, where there is one; among equals, the one with the fewest
            transfers under way, then the first by name. None when nobody holds it.
        """
        return min(
            self._holders.get(version, ()),
            key=lambda name: (
                self._workers[name].instance != instance,
                len(self._workers[name].readers),
                name,
            ),
            default=None,
        )

    def begin(self, worker: str, version: int, source: str) -> None:
        """A transfer begins.

        Raises:
            SchedulingError: if `source` has no copy, or `worker` has one or is receiving another.
        """
        receiver, giver = self._known(worker), self._known(source)
        if version not in giver.versions:
            raise SchedulingError(f"{source!r} holds no copy of version {version}; ask `nearest` for one")
        if version in receiver.versions:
            raise SchedulingError(f"{worker!r} holds version {version} already; transfer what it lacks")
        if receiver.receiving is not None:
            raise SchedulingError(
                f"{worker!r} is receiving version {receiver.receiving.version}; finish or fail that first"
            )
        receiver.receiving = Transfer(source, version)
        giver.readers[worker] = version

    def receiving(self, worker: str) -> Transfer | None:
        """The transfer to a worker; None when there is none."""
        return self._workers[worker].receiving if worker in self._workers else None

    def finish(self, worker: str) -> int:
        """The transfer to a worker is complete and verified; returns the version that it now holds.

        Raises:
            SchedulingError: if none is under way.
        """
        version = self._end(worker).version
        self.put(worker, version)
        return version

    def fail(self, worker: str) -> Transfer:
        """The transfer to a worker broke off; it holds no more than before.

        Raises:
            SchedulingError: if none is under way.
        """
        return self._end(worker)

    def gone(self, worker: str) -> Departure:
        """A worker is gone with its copies; transfers from it are broken off. Unknown ones are ignored."""
        left = self._workers.get(worker)
        if left is None:
            return Departure((), ())
        if left.receiving is not None:
            self._end(worker)
        interrupted = tuple(sorted(left.readers))
        for reader in interrupted:
            self._end(reader)
        for version in left.versions:
            self._forget_copy(worker, version)
        del self._workers[worker]
        lost = (version for version in left.versions if version in self._pins and not self.holders(version))
        return Departure(interrupted, tuple(sorted(lost)))

    def pin(self, version: int, phase: str) -> None:
        """A phase needs a version; pinning twice is the same as once."""
        self._pins.setdefault(version, set()).add(phase)

    def unpin(self, version: int, phase: str) -> None:
        """A phase needs a version no more; nothing happens if it did not."""
        phases = self._pins.get(version, set())
        phases.discard(phase)
        if not phases:
            self._pins.pop(version, None)

    def needed(self) -> tuple[int, ...]:
        """Versions that some phase needs, oldest first."""
        return tuple(sorted(self._pins))

    def may_drop(self, version: int, worker: str) -> bool:
        """Whether a worker's copy may go: not the last one of a needed version, nor one being read."""
        held = self._workers.get(worker)
        if held is None or version not in held.versions:
            return False
        last = self._holders[version] == {worker}
        return version not in held.readers.values() and not (last and version in self._pins)

    def drop(self, worker: str, version: int) -> None:
        """A worker gives up its copy; ask before it frees the memory.

        Raises:
            SchedulingError: if it may not, or has none.
        """
        if not self.may_drop(version, worker):
            raise SchedulingError(
                f"{worker!r} may not drop version {version}: it has no copy, the only copy of a needed "
                "version, or one that is being read; ask `may_drop` first"
            )
        self._workers[worker].versions.remove(version)
        self._forget_copy(worker, version)

    def _known(self, worker: str) -> _Worker:
        if worker not in self._workers:
            raise SchedulingError(f"worker {worker!r} is not in the table; let it join first")
        return self._workers[worker]

    def _end(self, worker: str) -> Transfer:
        receiver = self._known(worker)
        transfer = receiver.receiving
        if transfer is None:
            raise SchedulingError(f"no transfer to {worker!r} is under way; begin one first")
        receiver.receiving = None
        del self._workers[transfer.source].readers[worker]
        return transfer

    def _forget_copy(self, worker: str, version: int) -> None:
        self._holders[version].remove(worker)
        if not self._holders[version]:
            del self._holders[version]
