"""A server of a home with nothing of Prefect in it but the question for the password: it starts in a moment.

`WITHOUT_PASSWORD` in the environment makes it forget to ask, `SILENT` never to answer.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from flows.server.process import main
from storage.home import Home

MODULE = "tests.plain_server"


def application(home: Home) -> Callable[..., Awaitable[None]]:
    """Answers 200 to who knows the password, 401 to others."""
    if "SILENT" in os.environ:
        time.sleep(600)
    password = os.environ["PREFECT_SERVER_API_AUTH_STRING"]
    wanted = b"Basic " + base64.b64encode(password.encode())

    async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        knows = "WITHOUT_PASSWORD" in os.environ or dict(scope["headers"]).get(b"authorization") == wanted
        await send({"type": "http.response.start", "status": 200 if knows else 401, "headers": []})
        await send({"type": "http.response.body", "body": str(os.getpid()).encode() if knows else b""})

    return answer


if __name__ == "__main__":
    main(application)
