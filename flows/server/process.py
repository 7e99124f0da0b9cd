"""The Prefect server of a home, a child of a command that needs it.

It listens before it publishes its address, so that no other program can be taken for it.

    python -m flows.server.process HOME HOST PORT exact|any NAME...
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from flows.server.note import LOOPBACK, ServerNote, home_password, note_file, reachable, sole_holder
from storage.access.server_guard import ServerGuard
from storage.errors import ServerError
from storage.home import Home
from storage.processes import without_collections

_PREDECESSOR_S = 30.0
"""Seconds for the previous server to end."""

_BACKLOG = 2048
_CLOSING_S = 2
"""Seconds for requests under way when the server ends: its successor waits for them."""

_RECORDING_S = 8.0
"""Most seconds for an ending server to record pending requests."""


def server_environment(home: Home, port: int, host: str = LOOPBACK) -> dict[str, str]:
    """Return the environment of a server of ours: its state's folder, its address, its password.

    Raises:
        ServerError: the home's password cannot be made: no server may run without one.
    """
    ui_urls = {f"http://{name}:{port}" for name in (reachable(host), LOOPBACK, "localhost")}
    return {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home.prefect / 'prefect.db'}",
        "PREFECT_SERVER_API_HOST": host,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_API_AUTH_STRING": home_password(home),
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": ",".join(sorted(ui_urls)),
        # A browser asks for the API at the address of the page, whatever its name.
        "PREFECT_UI_API_URL": "/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # An iteration leaves 15 events with 45 rows about their subjects: most of 100 kB.
        "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": "PT1H",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_LOOP_SECONDS": "600",
    }


def serve(home: Home, host: str, port: int, exact: bool, names: tuple[str, ...]) -> None:
    """Serve Prefect's API and UI of a home until SIGTERM.

    Args:
        exact: True to accept only this port; otherwise the system chooses one if it is taken.

    Raises:
        ServerError: it cannot listen, or the previous server of the home does not end.
    """
    with sole_holder(note_file(home), _PREDECESSOR_S, f"an earlier Prefect server of {home.path}"):
        reason: OSError | None = None
        for wanted in (port,) if exact else (port, 0):
            try:
                listener = socket.create_server((host, wanted), backlog=_BACKLOG)  # it sets SO_REUSEADDR
                break
            except OSError as error:
                reason = error
        else:
            raise ServerError(f"port {port} on {host} cannot be listened on: {reason}; choose another port")
        bound = int(listener.getsockname()[1])
        os.environ.pop("PREFECT_API_URL", None)
        os.environ.update(server_environment(home, bound, host))
        ServerNote(host, bound, names).write(note_file(home))
        with without_collections():  # seconds, in which requests wait in the backlog; it reads the settings
            import uvicorn
            from prefect.server.api.server import create_app

            from flows.server.database import provide_prefect_database, take_write_lock_first

            take_write_lock_first()
            application = create_app(final=True)
        gc.freeze()  # its collections, while a run starts, need not look at all objects of the libraries
        provide_prefect_database(home.prefect / "prefect.db")
        guarded = ServerGuard(recorded_first(application), host, names)
        settings = uvicorn.Config(guarded, log_level="warning", timeout_graceful_shutdown=_CLOSING_S)
        uvicorn.Server(settings).run(sockets=[listener])


def recorded_first(application: Any) -> Any:
    """Return Prefect's ASGI application, made to record pending requests before it ends.

    By itself it drops events that still wait: task runs of a short run whose server was started again.
    """
    from prefect.server.utilities.messaging.memory import Topic

    async def recording(scope: Any, receive: Any, send: Any) -> None:
        async def received() -> Any:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                queues = [one._queue for one in Topic.by_name("events")._subscriptions]
                give_up_at = time.monotonic() + _RECORDING_S
                while any(queue.qsize() for queue in queues) and time.monotonic() < give_up_at:
                    await asyncio.sleep(0.5)  # long enough for the last event, which is in no queue any more
            return message

        await application(scope, received if scope["type"] == "lifespan" else receive, send)

    return recording


def main() -> None:
    """Serve as the command line says: HOME HOST PORT exact|any NAME..."""
    folder, host, port, exact, *names = sys.argv[1:]
    try:
        serve(Home(Path(folder)), host, int(port), exact == "exact", tuple(names))
    except ServerError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
