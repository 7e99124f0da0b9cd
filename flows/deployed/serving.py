"""The process that serves the deployments: `python -m flows.deployed.serving`, a child of `spotlight up`.

It replaces Prefect's `serve`, which does not expose its runner, and ends without telling running flows: here
SIGTERM cancels them, so they save their state and can be resumed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import psutil
from prefect.deployments.runner import EntrypointType, RunnerDeployment
from prefect.runner import Runner
from prefect.schedules import Cron
from prefect.utilities.callables import ParameterSchema

from flows.deployed.deployments import FLOWS, reproduce_by_form
from flows.deployed.forms import NIGHTLY_CRON, NIGHTLY_ZONE, ReproductionForm
from flows.process.ended_flow_runs import (
    close_flow_runs_of_deployments,
    close_flow_runs_of_ended_processes,
)
from flows.server.children import end_processes
from storage.home import Home

_GONE_S = 0.5
"""Seconds until a killed `up` is gone; its threads end one by one, and the first already sends the signal."""

POLL_S = 2.0
"""Seconds between requests to the server for flow runs that are due."""

NIGHTLY = {"nightly-ocr": "glyphs", "nightly-geneval": "shapes"}
"""Preset that is reproduced, by deployment: characters read by OCR, shapes judged as GenEval does.

One deployment each: Prefect's UI tells a deployment's schedules apart only by time, and these start together.
"""


class _NoOtherParameters(ParameterSchema):
    """Parameters that refuse unknown ones: Prefect's own pass them on, and the flow's process crashes."""

    additionalProperties: bool  # JSON schema names it so


def deployments(
    active: bool = False, cron: str = NIGHTLY_CRON, timezone: str = NIGHTLY_ZONE
) -> list[RunnerDeployment]:
    """Return the five deployments, found as NAME/NAME, and those of `NIGHTLY`, found as `reproduce/NAME`.

    Args:
        active: True to start the nightly ones on schedule; otherwise the user switches them on in Prefect.
        cron, timezone: that schedule.
    """
    schedule = Cron(cron, timezone=timezone, active=active, slug="nightly")
    # Not the file: a flow run must find it whatever folder `up` was started in.
    kind = EntrypointType.MODULE_PATH
    made = [flow.to_deployment(flow.name, entrypoint_type=kind) for flow in FLOWS]
    made += [
        reproduce_by_form.to_deployment(
            name, entrypoint_type=kind, schedule=schedule,
            parameters={"form": ReproductionForm(preset=preset).model_dump(mode="json")},
        )
        for name, preset in NIGHTLY.items()
    ]  # fmt: skip
    # A coroutine only in asynchronous code.
    ready = [deployment for deployment in made if isinstance(deployment, RunnerDeployment)]
    for deployment in ready:
        named = deployment._parameter_openapi_schema.model_dump(exclude_unset=True)
        deployment._parameter_openapi_schema = _NoOtherParameters(**named, additionalProperties=False)
    return ready


async def serve(served: list[RunnerDeployment], runs_at_once: int, ready: Path) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        runs_at_once: flow runs that may run at the same time.
        ready: file to create once runs can be started.
    """
    # Schedules keep their state when this ends: the next `up` sets again whether they are active.
    runner = Runner("spotlight", query_seconds=POLL_S, limit=runs_at_once, pause_on_shutdown=False)
    ids = [await runner.aadd_deployment(deployment) for deployment in served]
    # Those of an earlier `up` that was killed: its server ended before its runs could report how they ended.
    await asyncio.to_thread(close_flow_runs_of_ended_processes, Home.from_environment())
    await asyncio.to_thread(close_flow_runs_of_deployments, ids)
    stopping: list[asyncio.Task[None]] = []
    parent = os.getppid()

    async def end() -> None:
        """Cancel running flow runs, then end the runner."""
        await asyncio.sleep(_GONE_S)
        if os.getppid() == parent:
            await runner.astop()
        else:  # the server is gone with `up`, and the runner would ask it for minutes
            await asyncio.to_thread(end_processes, psutil.Process().children())
            os._exit(1)

    def stop() -> None:
        if not stopping:
            stopping.append(asyncio.create_task(end()))

    going = asyncio.create_task(runner.start())
    while not (runner.started or going.done()):
        await asyncio.sleep(0.05)
    if not going.done():
        # The runner's own handler, set by now, waits inside the signal for the loop that it blocks.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        ready.touch()
    await going


def main() -> None:
    """Serve to the server of PREFECT_API_URL; `up` gives the arguments in JSON."""
    schedule, runs_at_once, ready = json.loads(sys.argv[1])
    # Made outside of the loop, where Prefect's functions wait for themselves.
    asyncio.run(serve(deployments(*schedule), runs_at_once, Path(ready)))


if __name__ == "__main__":
    main()
