"""Between the planner, which knows of scores only, and the loop that drafts and judges."""

from __future__ import annotations

from collections.abc import Callable

from gpu_runtime.drafting import DraftTask
from gpu_runtime.exploration.draft_planner import Draft, DraftPlanner
from gpu_runtime.exploration.explorer import SeedExplorer
from gpu_runtime.exploration.monitor import MONITOR_ROUND
from gpu_runtime.exploration.plan import Candidate

TaskOf = Callable[[int, Draft], DraftTask]
"""The task of a round's draft."""


class PlannedDrafts:
    """A planner as the source of a drafting loop.

    Args:
        planner: says what to draft.
        explorer: says what is learned of a judgement.
        task: makes the task of a round's draft.
    """

    def __init__(self, planner: DraftPlanner, explorer: SeedExplorer, task: TaskOf) -> None:
        self._planner = planner
        self._explorer = explorer
        self._task = task

    def more(self) -> list[DraftTask]:
        """The planner's next round; none before the round before the last is judged."""
        if not self._planner.can_plan:
            return []
        drafts = self._planner.next_round()
        return [self._task(self._planner.round_of(draft), draft) for draft in drafts]

    def judged(self, candidate: Candidate) -> None:
        """Tell the planner of its draft's judgement; the monitor's re-scores are none of its drafts."""
        if candidate.round == MONITOR_ROUND:
            return
        score = self._explorer.signal(candidate) if candidate.error is None else None
        self._planner.observe(Draft(candidate.prompt_id, candidate.seed_index, candidate.fidelity), score)
