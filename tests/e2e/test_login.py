"""A dashboard that asks for a login, in a real browser, with a provider on this machine."""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from storage.home import Home
from storage.record.run_store import RunStore
from tests.browser import IN_CHROMIUM, Dashboard, NewPage, dashboard
from tests.running_up import free_port
from tests.sample_login import LOGIN, write_login
from tests.sample_run import write_sample_run

pytestmark = [*IN_CHROMIUM, pytest.mark.slow]


_KEY_ID = "key-1"


class IdentityProvider:
    """An OpenID Connect provider on this machine, which logs everybody in as the same person for a while.

    What it claims of the person, and the seconds for which that holds, may be changed while it serves.
    """

    def __init__(self, client_id: str, client_secret: str) -> None:
        self.client_id, self.client_secret = client_id, client_secret
        self.url = ""
        self.email, self.lasts_s, self.logins = "ada@example.org", 3600.0, 0
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.nonces: dict[str, str] = {}

    @property
    def metadata(self) -> dict[str, Any]:
        """How it describes itself."""
        return {
            "issuer": self.url, "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token", "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["code"], "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }  # fmt: skip

    def keys(self) -> dict[str, Any]:
        """Its public key."""
        numbers = self.key.public_key().public_numbers()
        sizes = {"n": (numbers.n, 256), "e": (numbers.e, 3)}
        parts = {name: _encoded(value.to_bytes(size, "big")) for name, (value, size) in sizes.items()}
        return {"keys": [{"kty": "RSA", "kid": _KEY_ID, "alg": "RS256", "use": "sig", **parts}]}

    def token(self, nonce: str) -> str:
        """A signed identity token."""
        now = int(time.time())
        claims = {
            "iss": self.url, "aud": self.client_id, "sub": "1", "email": self.email, "email_verified": True,
            "iat": now, "exp": now + self.lasts_s, "nonce": nonce,
        }  # fmt: skip
        header = {"alg": "RS256", "kid": _KEY_ID}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        signature = self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        self.logins += 1
        return f"{signed}.{_encoded(signature)}"


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    provider = IdentityProvider(LOGIN["client_id"], LOGIN["client_secret"])

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            if asked.path == "/authorize":
                query = {name: values[0] for name, values in parse_qs(asked.query).items()}
                code = secrets.token_hex(8)
                provider.nonces[code] = query["nonce"]
                self.send_response(302)
                back = urlencode({"code": code, "state": query["state"]})
                self.send_header("Location", f"{query['redirect_uri']}?{back}")
                self.end_headers()
                return
            known = {"/.well-known/openid-configuration": provider.metadata, "/keys": provider.keys()}
            self._answer(known.get(asked.path))

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            expected = base64.b64encode(f"{provider.client_id}:{provider.client_secret}".encode()).decode()
            nonce = provider.nonces.pop(form["code"][0], None)  # a code is good for one token
            if self.headers.get("Authorization") != f"Basic {expected}" or nonce is None:
                self._answer(None)
                return
            self._answer(
                {"access_token": "a", "token_type": "Bearer", "expires_in": int(provider.lasts_s),
                 "id_token": provider.token(nonce)}
            )  # fmt: skip

        def _answer(self, value: dict[str, Any] | None) -> None:
            self.send_response(400 if value is None else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(value or {"error": "invalid_request"}).encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("login")
    home, port = Home(folder / "home"), free_port()
    write_sample_run(RunStore(home), "going-on", iterations=3, status="running")
    addresses = {
        "redirect_uri": f"http://localhost:{port}/oauth2callback",
        "server_metadata_url": f"{provider.url}/.well-known/openid-configuration",
    }
    write_login(home, LOGIN | addresses)
    with dashboard(home.path, folder / "log", port) as running:
        yield Dashboard(running.url.replace("127.0.0.1", "localhost"), running.process)
    assert "Traceback" not in (folder / "log").read_text()


def test_who_is_allowed_sees_the_runs_until_the_login_expires(
    new_page: NewPage, served: Dashboard, provider: IdentityProvider
):
    """The page of a live run, which refreshes without anybody's doing."""
    provider.email, provider.lasts_s = "ada@example.org", 3600
    with new_page() as page:
        page.goto(served.url)
        page.get_by_text("Log in to see the runs.").wait_for()
        assert "going-on" not in page.content()
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("going-on").first.wait_for()
        page.get_by_text("Log out", exact=True).first.click()
        page.get_by_text("Log in to see the runs.").wait_for()
        provider.lasts_s = 20
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("The login has expired; log in again.").wait_for(timeout=90_000)
        # The browser removes what was drawn before once the new script has ended.
        page.get_by_text("going-on").first.wait_for(state="detached")
        page.reload()  # the browser's cookie lasts for 30 days
        page.get_by_text("The login has expired; log in again.").wait_for()
        assert "going-on" not in page.inner_text("body")


def test_who_is_not_on_the_list_sees_nothing(
    new_page: NewPage, served: Dashboard, provider: IdentityProvider
):
    provider.email, provider.lasts_s = "eve@example.org", 3600
    with new_page() as page:
        page.goto(served.url)
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("eve@example.org may not see this dashboard").wait_for()
        assert "going-on" not in page.content()
