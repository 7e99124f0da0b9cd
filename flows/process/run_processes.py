"""The parts of the runner that Spotlight replaces: start and end of a run's process, and waiting runs.

Prefect's own manager of processes sends SIGTERM and then looks every three seconds whether the process still
lives. Only after that is the run Cancelled. Prefect's own poller says nothing of a run for which there is no
room, and the server marks it as late without a reason. Its own starter lets a run's process read the settings
that lie in the current folder.
"""

from __future__ import annotations

import shlex
from functools import partial
from uuid import UUID

import anyio
import anyio.abc
import prefect.runner.runner
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.runner._process_manager import ProcessManager
from prefect.runner._scheduled_run_poller import ScheduledRunPoller
from prefect.runner._starter_engine import EngineCommandStarter
from prefect.states import Late
from prefect.types._datetime import now

from flows.process.prefect_settings import command_without_files

_LOOK_S = 0.1


class RunProcesses(ProcessManager):
    """Prefect's manager, except that it waits no longer than a process takes to end."""

    async def kill(self, flow_run_id: UUID, grace_seconds: float = 30, *, force: bool = False) -> None:
        """End a run's process: SIGTERM, and SIGKILL if it outlives the grace period.

        Args:
            flow_run_id: identifier of the flow run.
            grace_seconds: seconds between the two signals.
            force: True for SIGKILL at once.
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


class RunPoller(ScheduledRunPoller):
    """Prefect's poller, except that it gives the reason of a due run that waits for another."""

    async def _submit_scheduled_flow_runs(
        self, flow_run_response: list[FlowRun], task_group: anyio.abc.TaskGroup
    ) -> None:
        await super()._submit_scheduled_flow_runs(flow_run_response, task_group)
        due = now("UTC")
        waiting = [
            run for run in flow_run_response
            if run.id not in self._submitting_flow_run_ids
            and run.state_name == "Scheduled"
            and run.next_scheduled_start_time is not None
            and run.next_scheduled_start_time <= due
        ]  # fmt: skip
        if not waiting:
            return
        going_on = FlowRunFilter(id=FlowRunFilterId(any_=list(self._submitting_flow_run_ids)))
        names = sorted(run.name for run in await self._client.read_flow_runs(flow_run_filter=going_on))
        reason = f"waits for {' or '.join(names)} to end; `spotlight up --runs-at-once` allows more at once"
        for run in waiting:
            # Prefect refuses this name for a run that was just cancelled; any other would revive it.
            late = Late(scheduled_time=run.next_scheduled_start_time, message=reason)
            await self._client.set_flow_run_state(run.id, late)


def watch_closely() -> None:
    """Let runners that start from now on use all three; Prefect has no setting for that."""
    prefect.runner.runner.ProcessManager = RunProcesses
    prefect.runner.runner.ScheduledRunPoller = RunPoller
    prefect.runner.runner.EngineCommandStarter = partial(
        EngineCommandStarter, command=shlex.join(command_without_files("prefect.engine"))
    )
