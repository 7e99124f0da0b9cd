"""A home's server and its note: of Prefect it has only the question for the password, and a token."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager

from flows.server.note import ServerNote, home_password, note_file
from storage.home import Home
from tests.answering import answering

TOKEN = '{"client": "any", "token": "any", "expiration": "2100-01-01T00:00:00Z"}'
"""The token that Prefect's client requests before its first write or filtered read."""


@contextmanager
def noted_server(home: Home, asks: bool = True) -> Iterator[ServerNote]:
    """A server that another process of this home seems to have started; `asks` for the password."""
    login = f"Basic {base64.b64encode(home_password(home.ensure()).encode()).decode()}"
    with answering(200, TOKEN, login if asks else "") as url:
        note = ServerNote("127.0.0.1", int(url.rpartition(":")[2]))
        note.write(note_file(home))
        yield note
    note_file(home).unlink()
