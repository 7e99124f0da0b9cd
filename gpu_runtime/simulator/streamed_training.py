"""When trainers train on prompt groups that come in while the rollout still goes on. Pure."""

from __future__ import annotations

from gpu_runtime.simulator.phase_work import PhaseOutcome, PhaseWork


def training_spans(
    outcome: PhaseOutcome, work: PhaseWork, group: int, sample: int, rolled: int
) -> list[tuple[int, int]]:
    """From when to when the trainers train, in ticks from the beginning of the rollout.

    A prompt group is trained on once all its samples are judged; one after another, as they come in. Trainers
    that had to roll out again go on when the rollout is over, with the group that they could not end before.

    Args:
        outcome: of the rollout.
        work: of the rollout; its images are whole groups.
        group: samples of a prompt.
        sample: ticks of training of one, by all trainers together.
        rolled: ticks of the rollout.
    """
    judged, size = outcome.judged_at, work.size
    complete = sorted(
        max(judged[batch] for batch in range(first // size, (first + group - 1) // size + 1))
        for first in range(0, work.images, group)
    )
    free = rolled if outcome.trainers_left is None else outcome.trainers_left
    back = rolled if outcome.trainers_back is None else outcome.trainers_back
    spans: list[tuple[int, int]] = []
    for at in complete:
        since = max(free, at)
        if back < rolled and since < rolled and since + group * sample > back:
            since = max(rolled, at)
        free = since + group * sample
        if spans and spans[-1][1] == since:
            since = spans.pop()[0]
        spans.append((since, free))
    return spans
