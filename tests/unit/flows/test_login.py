"""The login of the dashboard: what half a login is refused for, and who may look for how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.server.dashboards import check_login
from storage.access.login import read_login, refusal
from storage.errors import ConfigurationError
from storage.home import Home
from tests.sample_login import LOGIN, write_login

NOW_S = 1_000_000.0
ADA = {"is_logged_in": True, "email": "ada@example.org", "exp": NOW_S + 1, "email_verified": True}


def test_a_complete_login(tmp_path: Path):
    assert read_login(Home(tmp_path), {}) is None
    login = read_login(write_login(Home(tmp_path)), {})
    assert login is not None
    assert login.host == "spotlight.example.org"
    assert login.allow == ("ada@example.org", "*@math.example.org")
    assert login.secrets() == {"auth": {k: v for k, v in LOGIN.items() if k != "allow"}}


def test_the_environment_comes_before_the_file_and_needs_none(tmp_path: Path):
    variables = {f"SPOTLIGHT_LOGIN_{key.upper()}": value for key, value in LOGIN.items() if key != "allow"}
    variables["SPOTLIGHT_LOGIN_ALLOW"] = "ada@example.org, *@math.example.org"
    by_variables = read_login(Home(tmp_path), variables)
    assert by_variables == read_login(write_login(Home(tmp_path)), {})
    other = read_login(Home(tmp_path), {"SPOTLIGHT_LOGIN_CLIENT_SECRET": "of the environment"})
    assert other is not None
    assert other.client_secret == "of the environment"


def test_the_file_may_lie_elsewhere(tmp_path: Path):
    write_login(Home(tmp_path))
    named = {"SPOTLIGHT_LOGIN": str(tmp_path / "login.toml")}
    assert read_login(Home(tmp_path / "home"), named) is not None
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml cannot be read"):
        read_login(Home(tmp_path), {"SPOTLIGHT_LOGIN": str(tmp_path / "nowhere.toml")})


@pytest.mark.parametrize("key", list(LOGIN))
def test_half_a_login_is_refused(tmp_path: Path, key: str):
    values = {name: value for name, value in LOGIN.items() if name != key}
    for given in (values, LOGIN | {key: ""}, LOGIN | {key: []}):
        with pytest.raises(ConfigurationError, match=rf"login\.toml: {key} missing; see docs/reference/dash"):
            check_login(write_login(Home(tmp_path), given), "127.0.0.1")
    texts = {k: value if isinstance(value, str) else ",".join(value) for k, value in values.items()}
    environ = {f"SPOTLIGHT_LOGIN_{name.upper()}": text for name, text in texts.items()}
    with pytest.raises(ConfigurationError, match=rf"environment: SPOTLIGHT_LOGIN_{key.upper()} missing; "):
        read_login(Home(tmp_path / "new"), environ)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("redirect_uri", "http://spotlight.example.org/oauth2callback", "unencrypted; use https://"),
        ("redirect_uri", "https://spotlight.example.org/", "must end in /oauth2callback"),
        ("redirect_uri", "spotlight.example.org/oauth2callback", "must begin with https://"),
        ("redirect_uri", "https://[1/oauth2callback", "is not an address: Invalid IPv6 URL"),
        ("redirect_uri", "https://id:x/oauth2callback", "is not an address: Port could not be cast"),
        ("redirect_uri", "https://id:0/oauth2callback", "is not an address: no server has port 0"),
        ("server_metadata_url", "http://id.example.org/", "unencrypted"),
        ("cookie_secret", "short", "has 5 characters, and needs 32; make one with `openssl rand -hex 32`"),
        ("client_id", 7, "client_id = 7: must be text"),
        (
            "allow",
            ["ada@example.org", 3],
            r"allow = \[.*, 3\]: must be a list of addresses, such as \[\"ada@",
        ),
        ("allow", [" "], "allow = .*: must be a list of addresses"),
        ("client_kwargs", ["prompt"], r"client_kwargs = \['prompt'\]: must be a table"),
        ("trust_email", "yes", "trust_email = 'yes': must be true or false"),
        ("alow", ["ada@example.org"], "alow: no such setting; did you mean allow"),
        ("webhook", "https://example.org", "no such setting; the top level has redirect_uri"),
        ("cookie_secret", ["s3cret"], "cookie_secret must be text, not list"),
        ("client_secret", "s3cret\0", "client_secret must contain neither NUL"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, key: str, value: Any, reason: str):
    with pytest.raises(ConfigurationError, match=reason) as refused:
        read_login(write_login(Home(tmp_path), LOGIN | {key: value}), {})
    assert "s3cret" not in f"{refused.value} {refused.value.__cause__}"


def test_a_refused_variable_is_named(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"\(from SPOTLIGHT_LOGIN_REDIRECT_URI\): must end in "):
        read_login(write_login(Home(tmp_path)), {"SPOTLIGHT_LOGIN_REDIRECT_URI": "https://example.org/"})


def test_a_file_that_others_can_read_or_that_is_damaged_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="run `chmod 600 "):
        read_login(write_login(Home(tmp_path), LOGIN, mode=0o640), {})
    (tmp_path / "login.toml").write_text("[[[")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_login(Home(tmp_path), {})


def test_without_a_login_only_this_machine_is_let_in(tmp_path: Path):
    check_login(Home(tmp_path), "127.0.0.1")
    with pytest.raises(ConfigurationError, match=r"--host 0\.0\.0\.0 would show all runs to everyone who"):
        check_login(Home(tmp_path), "0.0.0.0")
    check_login(write_login(Home(tmp_path)), "0.0.0.0")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"email": "ADA@Example.org"}, None),
        ({"email": "emmy@math.example.org"}, None),
        ({"email_verified": "true"}, None),
        ({"is_logged_in": False}, "Log in to see"),
        ({"is_logged_in": "yes"}, "Log in to see"),
        ({"exp": NOW_S}, "expired"),
        ({"exp": NOW_S - 3600}, "expired"),
        ({"exp": float("nan")}, "expired"),
        ({"exp": None}, "did not say when"),
        ({"exp": True}, "did not say when"),
        ({"exp": "tomorrow"}, "did not say when"),
        ({"email": None}, "did not give an e-mail address"),
        ({"email_verified": False}, "has verified"),
        ({"email_verified": "false"}, "does not say that it has verified ada@example.org"),
        ({"email_verified": None}, "does not say that it has verified"),
        ({"email": "eve@example.org"}, "eve@example.org may not see"),
        ({"email": "eve@math.example.org.evil.example"}, "may not see"),
    ],
)
def test_who_may_look(change: dict[str, Any], reason: str | None):
    said = refusal(ADA | change, tuple(LOGIN["allow"]), NOW_S)
    assert said is None if reason is None else reason in (said or "")


def test_a_provider_without_the_claim_must_be_trusted_by_a_setting():
    user = {name: value for name, value in ADA.items() if name != "email_verified"}
    allow = tuple(LOGIN["allow"])
    assert "set trust_email in login.toml" in (refusal(user, allow, NOW_S) or "")
    assert refusal(user, allow, NOW_S, trust_email=True) is None
    assert refusal(user | {"email_verified": False}, allow, NOW_S, trust_email=True) is not None


def test_everybody_whom_the_provider_knows_as_long_as_the_login_lasts():
    assert refusal({"is_logged_in": True, "exp": NOW_S + 1}, ("*",), NOW_S) is None
    assert refusal({"is_logged_in": True, "exp": NOW_S - 1}, ("*",), NOW_S) is not None
    assert refusal({}, ("*",), NOW_S) is not None
