"""What a history says of the promises, as values and in words."""

from __future__ import annotations

from dataclasses import dataclass

MOST_REDONE_WITH_NOTICE = 1
"""Denoising steps of a sample that a loss with a notice may cost."""


@dataclass(frozen=True)
class Redone:
    """Denoising steps that were done again because a worker gave samples up.

    Attributes:
        life: of the run.
        worker: that had done them first.
        with_notice: it had seen a preemption notice in time.
        interval: most denoising steps between two commits of its samples.
        most: of one sample.
        total: of all its samples.
        on_the_way: denoising steps of a commit that the worker had sent and the driver never got; a device
            works on while one travels.
    """

    life: int
    worker: str
    with_notice: bool
    interval: int
    most: int
    total: int
    on_the_way: int = 0

    @property
    def limit(self) -> int:
        """Denoising steps that the loss may have cost a sample."""
        if self.with_notice:
            return MOST_REDONE_WITH_NOTICE
        return self.interval + min(self.on_the_way, self.interval)


@dataclass(frozen=True)
class MissingHistory:
    """A worker that joined, and whose history is on another machine.

    Attributes:
        life: of the run.
        worker: its name.
        host: the machine.
        path: the file there.
    """

    life: int
    worker: str
    host: str
    path: str


@dataclass(frozen=True)
class HistoryReport:
    """What a history says of the promises.

    Attributes:
        requested: samples asked for in phases that ended, and drafts that were trained on.
        lost: those of them that were never accepted.
        duplicated: samples accepted more than once.
        held_twice: samples leased to one worker while another held them.
        incomplete: samples accepted without all their denoising steps.
        dropped: deliveries that came a second time and were dropped.
        steps_needed: denoising steps of the samples of ended phases.
        steps_done: what was done of them.
        redone: by loss; workers that were lost without any are there too.
        unfinished: samples of phases that the death of the driver cut off.
        missing: histories of workers on other machines; without them, steps that were done are not known.
    """

    requested: int
    lost: tuple[str, ...]
    duplicated: tuple[str, ...]
    held_twice: tuple[str, ...]
    incomplete: tuple[str, ...]
    dropped: int
    steps_needed: int
    steps_done: int
    redone: tuple[Redone, ...]
    unfinished: int
    missing: tuple[MissingHistory, ...] = ()

    @property
    def steps_redone(self) -> int:
        """Denoising steps done more than once, in phases that ended."""
        return sum(loss.total for loss in self.redone)

    def losses(self, with_notice: bool) -> int:
        """Workers lost with a notice, or without."""
        return sum(loss.with_notice == with_notice for loss in self.redone)

    def most_redone(self, with_notice: bool) -> int:
        """Denoising steps that a loss cost a sample at most; 0 without any loss."""
        return max((loss.most for loss in self.redone if loss.with_notice == with_notice), default=0)

    def broken(self) -> list[str]:
        """The promises that were broken, or cannot be checked, in words; none is well."""
        said = [
            f"the history of {one.worker} (life {one.life}) is on {one.host} at {one.path}: copy it into the "
            "folder of that life, and check again"
            for one in self.missing
        ]
        said += [
            f"{len(names)} samples {what}, such as {names[0]}"
            for names, what in (
                (self.lost, "were lost"),
                (self.duplicated, "were accepted twice"),
                (self.held_twice, "were held by two workers at once"),
                (() if self.missing else self.incomplete, "were accepted without all their denoising steps"),
            )
            if names
        ]
        for loss in self.redone:
            if loss.most > loss.limit:
                kind = "with" if loss.with_notice else "without"
                said.append(
                    f"the loss of {loss.worker} {kind} a notice cost a sample {loss.most} denoising steps; "
                    f"the limit is {loss.limit}"
                )
        return said
