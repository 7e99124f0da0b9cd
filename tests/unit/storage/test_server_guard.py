"""Which requests reach Prefect and the dashboard: by the names of the server, from its own pages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from storage.access.server_guard import ServerGuard

LOOPBACK = "127.0.0.1"


def headers(host: str | None = "127.0.0.1:4200", *origins: str) -> list[tuple[bytes, bytes]]:
    named = [] if host is None else [(b"host", host.encode())]
    return [*named, *((b"origin", origin.encode()) for origin in origins)]


async def never(*_: Any) -> Any:
    raise AssertionError("a refused request went through")


def guard(host: str = LOOPBACK, *names: str) -> ServerGuard:
    return ServerGuard(never, host, names)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:4200", "localhost:4200", "LOCALHOST:8080", "[::1]:4200", "localhost"]
)
def test_the_names_of_this_machine_are_served(host: str):
    assert guard().refusal(headers(host)) is None
    assert guard().refusal(headers(host, f"http://{host}")) is None, "its own page"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:4200", "127.0.0.1.evil.example:4200", "evil.example#127.0.0.1:4200", "127.0.0.1:x",
        "evil@127.0.0.1:4200", "127.0.0.1:4200/evil.example", "localhost.:4200", "10.1.2.3:4200",
        "0.0.0.0:4200", "", None,
    ],
)  # fmt: skip
def test_other_names_are_refused(host: str | None):
    assert guard().refusal(headers(host)) is not None


def test_two_hosts_are_refused():
    assert guard().refusal([*headers(), *headers("evil.example")]) is not None


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example", "http://evil.example:4200", "null", "", "127.0.0.1:4200", "http://127.0.0.1:8888",
        "http://127.0.0.1", "http://localhost:4200", "http://127.0.0.1:4200.evil.example", "file://127.0.0.1:4200",
        "chrome-extension://127.0.0.1:4200", "http://evil@127.0.0.1:4200",
    ],
)  # fmt: skip
def test_pages_of_another_origin_are_refused(origin: str):
    assert guard().refusal(headers("127.0.0.1:4200", origin)) is not None
    assert guard().refusal(headers("127.0.0.1:4200", "http://127.0.0.1:4200", origin)) is not None


def test_where_other_machines_reach_it_numbers_are_names_and_words_are_not():
    open_to_all = guard("0.0.0.0")
    assert open_to_all.refusal(headers("10.1.2.3:4200", "http://10.1.2.3:4200")) is None
    assert open_to_all.refusal(headers("10.1.2.3:4200", "http://10.6.6.6:4200")) is not None
    assert open_to_all.refusal(headers("evil.example:4200", "http://evil.example:4200")) is not None


def test_a_name_that_is_allowed_is_served_with_its_pages():
    behind = guard(LOOPBACK, "Spot.Example.com")
    assert behind.refusal(headers("spot.example.com", "https://spot.example.com")) is None
    assert behind.refusal(headers("127.0.0.1:4200", "https://spot.example.com")) is None, "a proxy's own Host"
    assert behind.refusal(headers("spot.example.com", "https://evil.example")) is not None


@pytest.mark.parametrize(
    ("kind", "first"),
    [("http", {"type": "http.response.start", "status": 403}), ("websocket", {"code": 1008})],
)
def test_a_refused_request_does_not_reach_prefect(kind: str, first: dict[str, Any]):
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(dict(message))

    scope = {"type": kind, "headers": headers("127.0.0.1:4200", "http://evil.example")}
    asyncio.run(guard()(scope, never, send))
    assert first.items() <= sent[0].items()
    assert not any(name.startswith(b"access-control") for name, _ in sent[0].get("headers", []))


def test_the_rest_goes_through():
    seen: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    passing = ServerGuard(application, LOOPBACK)
    for scope in (
        {"type": "lifespan"},
        {"type": "http", "headers": headers()},
        {"type": "websocket", "headers": headers()},
    ):
        asyncio.run(passing(scope, never, never))
    assert seen == ["lifespan", "http", "websocket"]
