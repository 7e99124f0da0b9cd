"""The dashboard's login, if one is configured: checked whenever anything is drawn."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import streamlit as st

from storage.access.login import Login, refusal

_ALLOWED_VARIABLE = "SPOTLIGHT_DASHBOARD_ALLOWS"
"""A variable of the dashboard's process, set if a login is needed: `allow` and `trust_email`, as JSON."""


def require_login(login: Login) -> None:
    """Make this process show pages only after the login."""
    os.environ[_ALLOWED_VARIABLE] = json.dumps({"allow": login.allow, "trust_email": login.trust_email})


def login_needed() -> bool:
    """Return True if this process asks for a login."""
    return _ALLOWED_VARIABLE in os.environ


def passes_login() -> bool:
    """Return True if the visitor may see the page; if not, show why, and a button to log in."""
    reason = _refusal()
    if reason is None:
        return True
    st.title("Spotlight")
    st.info(reason, icon=":material/lock:")
    st.button("Log in", on_click=st.login, type="primary")
    return False


def fragment(draw: Callable[..., None], run_every: str | None = None) -> Callable[..., None]:
    """Return Streamlit's fragment, a part of a page that refreshes by itself; an expired login ends that."""

    def drawn(*args: Any) -> None:
        if _refusal() is not None:
            st.rerun()
        draw(*args)

    return st.fragment(drawn, run_every=run_every)


def _refusal() -> str | None:
    if not login_needed():
        return None
    login = json.loads(os.environ[_ALLOWED_VARIABLE])
    return refusal(st.user.to_dict(), tuple(login["allow"]), time.time(), login["trust_email"])
