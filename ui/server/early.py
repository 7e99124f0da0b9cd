"""Scripts of Streamlit's frontend that a browser prepares while the server still reads a page's data.

Without this, it asks for the chart's script, the largest of all, when the first chart arrives. The answer
with the page names the scripts, so that they are fetched beside the others; the first element runs them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.file_util import get_static_dir

_CHARTS, _TABLES = ("PlotlyChart",), ("DataFrame", "arrowFormatUtils")
_SCRIPTS: dict[str, tuple[str, ...]] = {  # by the page's address
    "": _CHARTS, "convergence": _CHARTS, "cost": _CHARTS, "seeds": _CHARTS, "spot": _CHARTS + _TABLES,
    "runs": _CHARTS + _TABLES, "evaluations": _TABLES, "reproducibility": _TABLES,
}  # fmt: skip


@cache
def _addresses(page: str) -> list[str]:
    """Return the addresses of a page's scripts; those that this version of Streamlit lacks are left out."""
    folder = Path(get_static_dir()) / "static/js"
    return [
        f"./static/js/{file.name}" for name in _SCRIPTS.get(page, ()) for file in folder.glob(f"{name}.*.js")
    ]


def running_scripts(page: str) -> str:
    """Return HTML that runs the scripts of a page, given by its address without the slash."""
    imports = "".join(f'import("{address}");' for address in _addresses(page))
    return f'<script type="module">{imports}</script>'


class EarlyScripts:
    """An ASGI application around another: it adds the scripts' addresses to the answer with a page."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        page = scope["path"].strip("/") if scope["type"] == "http" else None
        addresses = _addresses(page) if page in _SCRIPTS else []

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                links = [(b"link", f"<{address}>; rel=modulepreload".encode()) for address in addresses]
                message["headers"] = [*message["headers"], *links]
            await send(message)

        await self._application(scope, receive, sent if addresses else send)
