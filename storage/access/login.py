"""The login of the dashboard: its OpenID Connect provider, and the users who may enter."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from storage.config.errors import explain
from storage.config.section import Section
from storage.errors import ConfigurationError
from storage.home import Home, is_open_to_others
from storage.text import is_loopback, web_address

LOGIN_VARIABLE = "SPOTLIGHT_LOGIN"
"""The environment variable that names the file with the settings of the login."""

_CALLBACK = "/oauth2callback"
_SECRET_LENGTH = 32

_Text = Annotated[str, Field(min_length=1)]


class Login(Section):
    """A complete login."""

    redirect_uri: str
    """Address of the dashboard as browsers see it, ending in `/oauth2callback`."""

    cookie_secret: str
    """Secret that signs the cookie of a logged-in browser."""

    client_id: _Text
    client_secret: _Text
    """Credentials of the dashboard at the provider."""

    server_metadata_url: str
    """Address of the provider's metadata."""

    allow: tuple[_Text, ...] = Field(min_length=1)
    """Addresses that may enter, such as `ada@example.org` or `*@example.org`; `*` is any user of the
    provider."""

    trust_email: bool = Field(default=False, strict=True)
    """True for a provider that does not say if it has verified an address, and whose addresses can be
    trusted."""

    client_kwargs: dict[str, Any] = Field(default={})
    """Further parameters for the provider, as in Streamlit's documentation."""

    @field_validator("redirect_uri", "server_metadata_url")
    @classmethod
    def _is_encrypted(cls, value: str, info: ValidationInfo) -> str:
        parts = web_address(value)
        if parts is None:
            raise ValueError(f"{info.field_name} {value} is no address that begins with https://")
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise ValueError(
                f"{info.field_name} {value} sends the login over the network unencrypted; use https://"
            )
        return value

    @field_validator("redirect_uri")
    @classmethod
    def _is_the_callback(cls, value: str) -> str:
        if not urlsplit(value).path.endswith(_CALLBACK):
            raise ValueError(f"redirect_uri {value} must end in {_CALLBACK}")
        return value

    @field_validator("cookie_secret")
    @classmethod
    def _is_long(cls, value: str) -> str:
        if len(value) < _SECRET_LENGTH:
            raise ValueError(
                f"cookie_secret has {len(value)} characters, and needs {_SECRET_LENGTH}; make one with "
                "`openssl rand -hex 32`"
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
    keys = [key for key, field in Login.model_fields.items() if field.is_required()]
    given = {key: environ[name] for key in keys if environ.get(name := f"{LOGIN_VARIABLE}_{key.upper()}")}
    named = environ.get(LOGIN_VARIABLE, "")
    file = Path(named).expanduser() if named else home.path / "login.toml"
    if not named and not given and not file.exists():
        return None
    values: dict[str, Any] = _read(file) if named or file.exists() else {}
    values |= given
    if isinstance(values.get("allow"), str):
        values["allow"] = [part.strip() for part in values["allow"].split(",") if part.strip()]
    try:
        return Login(**values)
    except ValidationError as error:
        source = str(file) if named or file.exists() else "the environment"
        raise ConfigurationError(
            f"the login of {source}: {'; '.join(explain(error, Login))} (docs/reference/dashboard.md)"
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
