"""A home's server with nothing of Prefect in it but the question for the password, and its note."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager

from flows.server.note import ServerNote, home_password, note_file
from storage.home import Home
from tests.answering import answering


@contextmanager
def noted_server(home: Home, asks: bool = True) -> Iterator[ServerNote]:
    """A server that another process of this home seems to have started; `asks` for the password."""
    login = f"Basic {base64.b64encode(home_password(home.ensure()).encode()).decode()}"
    with answering(200, "{}", login if asks else "") as url:
        note = ServerNote("127.0.0.1", int(url.rpartition(":")[2]))
        note.write(note_file(home))
        yield note
    note_file(home).unlink()
