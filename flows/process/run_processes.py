"""The processes of served runs: the runner learns at once when a cancelled one is gone.

Prefect's own manager sends SIGTERM and then looks every three seconds whether the process still lives. Only
after that is the run Cancelled.
"""

from __future__ import annotations

from uuid import UUID

import anyio
import prefect.runner.runner
from prefect.runner._process_manager import ProcessManager

_LOOK_S = 0.1


class RunProcesses(ProcessManager):
    """Prefect's manager, which waits no longer than a process takes to end."""

    async def kill(self, flow_run_id: UUID, grace_seconds: float = 30, *, force: bool = False) -> None:
        """End a run's process: SIGTERM, and SIGKILL where it outlives the grace period.

        Args:
            flow_run_id: of the run.
            grace_seconds: between the two signals.
            force: SIGKILL at once.
        """
        handle = self.get(flow_run_id)
        async with anyio.create_task_group() as either:

            async def until_it_is_gone() -> None:
                while handle is not None and handle.is_alive():
                    await anyio.sleep(_LOOK_S)
                either.cancel_scope.cancel()

            either.start_soon(until_it_is_gone)
            await super().kill(flow_run_id, grace_seconds, force=force)
            either.cancel_scope.cancel()


def watch_closely() -> None:
    """Let the runners that start from now on use it; Prefect has no setting for that."""
    prefect.runner.runner.ProcessManager = RunProcesses
