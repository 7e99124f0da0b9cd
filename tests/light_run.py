"""A run that only keeps the books in Prefect: `python -m tests.light_run NAME TASKS`."""

from __future__ import annotations

import json
import sys
import time

from flows.process.ended_flow_runs import close_orphaned_flow_runs
from flows.process.stopping import stops_in_order
from flows.server.prefect_server import prefect_server
from storage.home import Home


def main() -> None:
    """Run a flow of that name with so many tasks; print where its books are, and what it came to."""
    name, tasks = sys.argv[1], int(sys.argv[2])
    home = Home.from_environment().ensure()
    with stops_in_order("Stopped."), prefect_server(home) as ui_url:
        from prefect import flow, task

        from flows.process.cancellation import cancellable

        @task
        def step(number: int) -> int:
            time.sleep(0.2)
            return number

        @flow
        def light() -> int:
            return sum(step(number) for number in range(tasks))

        close_orphaned_flow_runs([name])
        with cancellable(name):
            result = light.with_options(flow_run_name=name)()
    print(json.dumps({"name": name, "result": result, "ui_url": ui_url.split(" ")[0]}))


if __name__ == "__main__":
    main()
