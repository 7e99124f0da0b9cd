"""Only those who are logged in see a page, where a login is configured; each time anything is drawn."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import streamlit as st

from storage.login import Login, refusal

_ALLOWED_VARIABLE = "SPOTLIGHT_DASHBOARD_ALLOWS"
"""Set in the dashboard's own process, where a login is needed: JSON list of those whom it lets in."""


def require_login(login: Login) -> None:
    """From now on this process shows pages only after the login."""
    os.environ[_ALLOWED_VARIABLE] = json.dumps(login.allow)


def login_needed() -> bool:
    """Whether this process asks for a login."""
    return _ALLOWED_VARIABLE in os.environ


def may_look() -> bool:
    """Whether the person may see the page; if not, the way to log in is shown instead."""
    reason = _refusal()
    if reason is None:
        return True
    st.title("Spotlight")
    st.info(reason, icon=":material/lock:")
    st.button("Log in", on_click=st.login, type="primary")
    return False


def fragment(draw: Callable[..., None], run_every: str | None = None) -> Callable[..., None]:
    """Streamlit's fragment, which is drawn again without its page; an expired login ends that."""

    def drawn(*args: Any) -> None:
        if _refusal() is not None:
            st.rerun()
        draw(*args)

    return st.fragment(drawn, run_every=run_every)


def _refusal() -> str | None:
    if not login_needed():
        return None
    return refusal(st.user.to_dict(), tuple(json.loads(os.environ[_ALLOWED_VARIABLE])), time.time())
