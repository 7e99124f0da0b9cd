"""A login of the dashboard, complete, and the file that describes it."""

from __future__ import annotations

import json
from typing import Any

from storage.home import Home

LOGIN: dict[str, Any] = {
    "redirect_uri": "https://spotlight.example.org/oauth2callback",
    "cookie_secret": "c" * 32,
    "client_id": "spotlight",
    "client_secret": "client secret",
    "server_metadata_url": "https://id.example.org/.well-known/openid-configuration",
    "allow": ["ada@example.org", "*@math.example.org"],
}


def write_login(home: Home, values: dict[str, Any] = LOGIN, mode: int = 0o600) -> Home:
    """Give a home a login; returns the home."""
    home.path.mkdir(exist_ok=True)
    file = home.path / "login.toml"
    file.touch(0o600)
    file.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items()))
    file.chmod(mode)
    return home
