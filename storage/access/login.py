"""The dashboard's login: its OpenID Connect provider, and the users it admits."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from storage.config.errors import explain, naming_sources, origin_of
from storage.config.section import Section
from storage.errors import ConfigurationError, quoted
from storage.home import Home, is_open_to_others
from storage.text import NOT_TEXT, is_loopback, is_text

LOGIN_VARIABLE = "SPOTLIGHT_LOGIN"
"""The environment variable with the path of the login's settings."""

_CALLBACK = "/oauth2callback"
_SECRET_LENGTH = 32


class Login(Section):
    """A complete login."""

    model_config = ConfigDict(hide_input_in_errors=True)  # it may be a secret

    redirect_uri: str
    """Address of the dashboard as browsers see it, ending in `/oauth2callback`."""

    cookie_secret: str
    """Secret that signs the cookie of a logged-in browser."""

    client_id: str

    client_secret: str
    """Credentials of the dashboard at the provider."""

    server_metadata_url: str
    """Address of the provider's metadata."""

    allow: tuple[str, ...]
    """Addresses admitted, such as `ada@example.org` or `*@example.org`; `*` is any user of the
    provider."""

    trust_email: bool = Field(default=False, strict=True)
    """True to trust the addresses of a provider that does not say whether it verified them."""

    client_kwargs: dict[str, Any] = Field(default={})
    """Further parameters for the provider, as in Streamlit's documentation."""

    @field_validator("redirect_uri", "server_metadata_url")
    @classmethod
    def _is_encrypted(cls, value: str, info: ValidationInfo) -> str:
        said = f"{info.field_name} = {quoted(value)}{origin_of(info.field_name or '')}:"
        try:
            parts = urlsplit(value)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"{said} is not an address: {error}") from error
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError(f"{said} must begin with https:// and a host")
        if port == 0:
            raise ValueError(f"{said} is not an address: no server has port 0")
        if parts.scheme == "http" and not is_loopback(host):
            raise ValueError(f"{said} sends the login over the network unencrypted; use https://")
        return value

    @field_validator("redirect_uri")
    @classmethod
    def _is_the_callback(cls, value: str) -> str:
        if not urlsplit(value).path.endswith(_CALLBACK):
            raise ValueError(
                f"redirect_uri = {quoted(value)}{origin_of('redirect_uri')}: must end in {_CALLBACK}"
            )
        return value

    @field_validator("cookie_secret", "client_secret", mode="before")
    @classmethod
    def _is_a_secret(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a secret before a check that would show it."""
        if not isinstance(value, str) or not is_text(value):
            problem = NOT_TEXT if isinstance(value, str) else f"must be text, not {type(value).__name__}"
            raise ValueError(f"{info.field_name}{origin_of(info.field_name or '')} {problem}")
        return value

    @field_validator("cookie_secret")
    @classmethod
    def _is_long(cls, value: str) -> str:
        if len(value) < _SECRET_LENGTH:
            raise ValueError(
                f"cookie_secret{origin_of('cookie_secret')} has {len(value)} characters, and needs "
                f"{_SECRET_LENGTH}; make one with `openssl rand -hex 32`"
            )
        return value

    @field_validator("allow", mode="before")
    @classmethod
    def _lists_addresses(cls, value: Any) -> Any:
        if not isinstance(value, list) or not all(isinstance(one, str) and one.strip() for one in value):
            raise ValueError(
                f'allow = {quoted(value)}: must be a list of addresses, such as ["ada@example.org"]'
            )
        return value

    @property
    def host(self) -> str:
        """The name under which browsers reach the dashboard."""
        return urlsplit(self.redirect_uri).hostname or ""

    def secrets(self) -> dict[str, Any]:
        """Return the section `auth` of Streamlit's secrets."""
        return {"auth": self.model_dump(exclude={"allow", "trust_email"}, exclude_defaults=True)}


def read_login(home: Home, environ: Mapping[str, str] | None = None) -> Login | None:
    """Return the login from `login.toml` in the home or the file of SPOTLIGHT_LOGIN; None without one.

    A variable such as SPOTLIGHT_LOGIN_CLIENT_SECRET overrides the file's `client_secret`, so that secrets
    need not be in a file; SPOTLIGHT_LOGIN_ALLOW separates addresses by commas.

    Raises:
        ConfigurationError: the login is incomplete, cannot work, or can be read by others.
    """
    environ = os.environ if environ is None else environ
    required = [key for key, field in Login.model_fields.items() if field.is_required()]
    variables = {key: f"{LOGIN_VARIABLE}_{key.upper()}" for key in required}
    given = {key: environ[name] for key, name in variables.items() if environ.get(name)}
    named = environ.get(LOGIN_VARIABLE, "")
    file = Path(named).expanduser() if named else home.path / "login.toml"
    if not named and not given and not file.exists():
        return None
    has_file = bool(named) or file.exists()
    values = (_read(file) if has_file else {}) | given
    if isinstance(values.get("allow"), str):
        values["allow"] = [part.strip() for part in values["allow"].split(",") if part.strip()]
    missing = [key for key in required if values.get(key) in (None, "", [])]
    for key in missing:
        values.pop(key, None)
    with naming_sources({key: variables[key] for key in given}):
        try:
            return Login.model_validate(values)
        except ValidationError as error:
            lines = zip(explain(error, Login), error.errors(), strict=True)
            problems = [line for line, problem in lines if problem["type"] != "missing"]
            if missing:
                names = missing if has_file else [variables[key] for key in missing]
                problems.append(f"{', '.join(names)} missing")
            raise ConfigurationError(
                f"the login of {file if has_file else 'the environment'}: {'; '.join(problems)}; see "
                "docs/reference/dashboard.md"
            ) from error


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
