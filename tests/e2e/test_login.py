"""A dashboard that asks for a login, in a real browser, with a provider on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage.home import Home
from storage.record.run_store import RunStore
from tests.browser import Dashboard, NewPage, dashboard, find_chromium
from tests.identity_provider import IdentityProvider, identity_provider
from tests.running_up import free_port
from tests.sample_login import LOGIN, write_login
from tests.sample_run import write_sample_run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="no chromium on this machine"),
]


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with identity_provider(LOGIN["client_id"], LOGIN["client_secret"]) as running:
        yield running


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
