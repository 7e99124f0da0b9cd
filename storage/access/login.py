"""The login of the dashboard: its OpenID Connect provider, and the users who may enter."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from storage.errors import ConfigurationError
from storage.home import Home, is_open_to_others

LOGIN_VARIABLE = "SPOTLIGHT_LOGIN"
"""The environment variable that names the file with the settings of the login."""

_TEXTS = ("redirect_uri", "cookie_secret", "client_id", "client_secret", "server_metadata_url")
_KEYS = (*_TEXTS, "allow")
_OPTIONAL = ("trust_email", "client_kwargs")
_KINDS: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys(_TEXTS, (str, "text")),
    "trust_email": (bool, "true or false"), "client_kwargs": (dict, "a table"),
}  # fmt: skip
_CALLBACK = "/oauth2callback"
_SECRET_LENGTH = 32
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Login:
    """A complete login.

    Attributes:
        redirect_uri: address of the dashboard as browsers see it, ending in `/oauth2callback`.
        cookie_secret: secret that signs the cookie of a logged-in browser.
        client_id, client_secret: credentials of the dashboard at the provider.
        server_metadata_url: address of the provider's metadata.
        allow: addresses that may enter, such as `ada@example.org` or `*@example.org`; `*` is any user of the
            provider.
        trust_email: True for a provider that does not say if it has verified an address, and whose addresses
            can be trusted.
        client_kwargs: further parameters for the provider, as in Streamlit's documentation.
    """

    redirect_uri: str
    cookie_secret: str
    client_id: str
    client_secret: str
    server_metadata_url: str
    allow: tuple[str, ...]
    trust_email: bool = False
    client_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The name under which browsers reach the dashboard."""
        return urlsplit(self.redirect_uri).hostname or ""

    def secrets(self) -> dict[str, Any]:
        """Return the section `auth` of Streamlit's secrets."""
        auth: dict[str, Any] = {name: getattr(self, name) for name in _TEXTS}
        return {"auth": auth | ({"client_kwargs": dict(self.client_kwargs)} if self.client_kwargs else {})}


def read_login(home: Home, environ: Mapping[str, str] | None = None) -> Login | None:
    """Return the login from `login.toml` in the home or the file of SPOTLIGHT_LOGIN; None without one.

    A variable such as SPOTLIGHT_LOGIN_CLIENT_SECRET overrides the file's `client_secret`, so that secrets
    need not be in a file; SPOTLIGHT_LOGIN_ALLOW separates addresses by commas.

    Raises:
        ConfigurationError: the login is incomplete, cannot work, or can be read by others.
    """
    environ = os.environ if environ is None else environ
    given = {key: environ[name] for key in _KEYS if environ.get(name := f"{LOGIN_VARIABLE}_{key.upper()}")}
    named = environ.get(LOGIN_VARIABLE, "")
    file = Path(named).expanduser() if named else home.path / "login.toml"
    if not named and not given and not file.exists():
        return None
    values: dict[str, Any] = _read(file) if named or file.exists() else {}
    values |= given
    if isinstance(values.get("allow"), str):
        values["allow"] = [part.strip() for part in values["allow"].split(",") if part.strip()]
    return _checked(values, str(file) if named or file.exists() else "the environment")


def refusal(
    user: Mapping[str, Any], allow: tuple[str, ...], now_s: float, trust_email: bool = False
) -> str | None:
    """Return why a user may not see the dashboard; None for a permitted user.

    Args:
        user: claims that Streamlit keeps of the identity token, whose expiry it never checks again.
        allow, trust_email: as in `Login`.
        now_s: current time, in Unix seconds.
    """
    if user.get("is_logged_in") is not True:
        return "Log in to see the runs."
    expires_s = user.get("exp")
    if isinstance(expires_s, bool) or not isinstance(expires_s, int | float):
        return "The provider did not say when the login expires; log in again."
    if not now_s < expires_s:
        return "The login has expired; log in again."
    address = str(user.get("email") or "").lower()
    if "*" in allow:
        return None
    if not address:
        return "The provider did not give an e-mail address; log in with another account."
    verified = user.get("email_verified", trust_email)
    if verified is not True and verified != "true":  # some providers send text
        return (
            f"The provider does not say that it has verified {address}; log in with another account, or set "
            "trust_email in login.toml if its addresses can be trusted."
        )
    if not any(fnmatchcase(address, pattern.lower()) for pattern in allow):
        return f"{address} may not see this dashboard; log in with another account."
    return None


def _read(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the login {file} cannot be read: {error}") from error
    if is_open_to_others(file):
        raise ConfigurationError(
            f"the login {file} holds secrets, and others can read it; run `chmod 600 {file}`"
        )
    return values


def _checked(values: Mapping[str, Any], source: str) -> Login:
    unknown = sorted(set(values) - {*_KEYS, *_OPTIONAL})
    if unknown:
        raise ConfigurationError(
            f"the login of {source} has {unknown[0]!r}; it takes {', '.join([*_KEYS, *_OPTIONAL])}"
        )
    missing = [key for key in _KEYS if not values.get(key)]
    if missing:
        raise ConfigurationError(
            f"the login of {source} is not complete: {', '.join(missing)} missing; "
            "see docs/reference/dashboard.md"
        )
    for key, (kind, words) in _KINDS.items():
        if key in values and not isinstance(values[key], kind):
            raise ConfigurationError(f"{key} of {source} must be {words}, not {values[key]!r}")
    allow = values["allow"]
    if not isinstance(allow, list) or not all(isinstance(one, str) and one.strip() for one in allow):
        raise ConfigurationError(f'allow of {source} must be a list of addresses, as in ["ada@example.org"]')
    _check_address(values["redirect_uri"], "redirect_uri", source)
    _check_address(values["server_metadata_url"], "server_metadata_url", source)
    if not urlsplit(values["redirect_uri"]).path.endswith(_CALLBACK):
        raise ConfigurationError(f"redirect_uri {values['redirect_uri']} of {source} must end in {_CALLBACK}")
    if len(values["cookie_secret"]) < _SECRET_LENGTH:
        raise ConfigurationError(
            f"cookie_secret of {source} has {len(values['cookie_secret'])} characters, and needs "
            f"{_SECRET_LENGTH}; make one with `openssl rand -hex 32`"
        )
    return Login(**{**values, "allow": tuple(allow)})


def _check_address(address: str, key: str, source: str) -> None:
    try:
        parts = urlsplit(address)
        name, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"{key} {address} of {source} is no address: {error}") from error
    if parts.scheme not in ("http", "https") or not name:
        raise ConfigurationError(f"{key} {address} of {source} must begin with https://")
    if parts.scheme == "http" and name not in _LOOPBACK_NAMES:
        raise ConfigurationError(
            f"{key} {address} of {source} sends the login over the network unencrypted; use https://"
        )
