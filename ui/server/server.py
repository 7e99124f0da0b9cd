"""The dashboard's server: `streamlit run ui/server/server.py --server.address 127.0.0.1`.

`app.py` lists the pages. This file decides which requests reach them, by host name and by login.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

# Streamlit puts the folder of this file on the path; our imports start at the project's root.
_ROOT = str(Path(__file__).resolve().parents[2])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

from storage.access.login import read_login  # noqa: E402
from storage.access.server_guard import ServerGuard  # noqa: E402
from storage.home import Home  # noqa: E402
from ui.server.early import EarlyScripts  # noqa: E402
from ui.server.login import require_login  # noqa: E402


@asynccontextmanager
async def _prepared(_app: object) -> AsyncIterator[None]:
    """Import what the pages import before the first browser asks.

    Streamlit collects garbage after each drawing, which holds up its last messages: imports are left out.
    """
    for name in ("ui.report.report", "ui.pages.runs.comparison", "storage.evaluations.strategies"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    yield


_LOGIN = read_login(Home.from_environment())
if _LOGIN is not None:
    require_login(_LOGIN)

_PARSER = argparse.ArgumentParser()
_PARSER.add_argument("--name", action="append", default=[], help="a further host name that it answers to")
_NAMES: list[str] = _PARSER.parse_known_args()[0].name

app = st.App(
    Path(_ROOT) / "ui/server/app.py",
    lifespan=_prepared,
    secrets=None if _LOGIN is None else _LOGIN.secrets(),
    middleware=[
        Middleware(
            ServerGuard,  # Streamlit's own check lets pages of this machine's other ports in
            host=st.get_option("server.address") or "127.0.0.1",
            names=_NAMES if _LOGIN is None else [*_NAMES, _LOGIN.host],
        ),
        Middleware(EarlyScripts),
    ],
)
