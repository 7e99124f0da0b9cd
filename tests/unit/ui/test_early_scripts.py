"""Scripts that the dashboard names with a page, and with no other answer."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Scope, Send

from ui.server.early import EarlyScripts, _addresses


async def _answers(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


def headers_of(path: str) -> list[tuple[bytes, bytes]]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    asyncio.run(EarlyScripts(_answers)({"type": "http", "path": path}, receive, send))
    return sent[0]["headers"]


def test_only_pages_name_scripts_and_other_addresses_are_not_remembered():
    assert any(b"PlotlyChart" in value for _, value in headers_of("/seeds"))
    remembered = _addresses.cache_info().currsize
    assert [headers_of(f"/media/{number}.png") for number in range(3)] == [[], [], []]
    assert _addresses.cache_info().currsize == remembered
