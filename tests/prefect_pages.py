"""Prefect's UI in a browser, as a person uses it: forms filled in, runs watched and cancelled.

Prefect 3.8 has two; this is the one that its first page leads to.
"""

from __future__ import annotations

import re
from typing import Literal

from playwright.sync_api import Locator, Page

ANSWER_S = 60.0
"""For what a page shows at once, on a machine with nothing else to do."""

RUN_S = 600.0
"""For what a page shows when a run has come so far."""

_WITHOUT_GRAPH = """HTMLCanvasElement.prototype.getContext = new Proxy(
    HTMLCanvasElement.prototype.getContext,
    {apply: (get, canvas, [kind, ...more]) => /^webgl/.test(kind) ? null : get.call(canvas, kind, ...more)},
)"""

State = Literal["Scheduled", "Pending", "Running", "Completed", "Cancelling", "Cancelled", "Failed"]


class PrefectPages:
    """Prefect's UI of a `spotlight up`.

    Everything is found by its role, label or text, which are what a person goes by.
    """

    def __init__(self, page: Page, api: str, password: str, with_graph: bool = False) -> None:
        self.page = page
        self.address = api.removesuffix("/api")
        page.set_default_timeout(ANSWER_S * 1000)
        if not with_graph:  # without a GPU it takes more of the processor than the run does
            page.add_init_script(_WITHOUT_GRAPH)
        self._log_in(password)

    def _log_in(self, password: str) -> None:
        """Through the page that whoever has not logged in gets instead of any other."""
        self.page.goto(self.address)
        self.page.get_by_placeholder("admin:pass").fill(password)
        self.page.get_by_role("button", name="Login", exact=True).click()
        self.page.get_by_role("link", name="Deployments", exact=True).wait_for()

    def open_form(self, deployment: str) -> None:
        """From Prefect's first page to the form of a deployment, by what there is to click."""
        self.page.goto(self.address)
        self.page.get_by_role("link", name="Deployments", exact=True).click()
        # The first page, which stays a moment, has links of that name to flows.
        named = self.page.get_by_role("main").get_by_role("link", name=deployment, exact=True)
        named.and_(self.page.locator("[href*='/deployments/deployment/']")).first.click()
        # The first page of a browser that draws without a GPU takes its time where other tests run.
        self.page.get_by_role("button", name="Run", exact=True).click(timeout=300_000)
        self.page.get_by_role("menuitem", name="Custom run").click()
        self.submit_button.wait_for()

    @property
    def submit_button(self) -> Locator:
        """The button at the form's end."""
        return self.page.get_by_role("button", name="Submit", exact=True)

    def choose(self, field: str, value: str) -> None:
        """Choose a value of a drop-down, by typing its beginning as a person would."""
        self.page.get_by_label(field).click()
        self.page.get_by_placeholder("Search...").fill(value)
        self.page.get_by_role("option", name=value, exact=True).click()

    def choices(self, field: str) -> list[str]:
        """What a drop-down offers; it is closed again."""
        self.page.get_by_label(field).click()
        self.page.get_by_role("option").first.wait_for()
        offered = self.page.get_by_role("option").all_inner_texts()
        self.page.keyboard.press("Escape")
        return offered

    def name_run(self, name: str) -> None:
        """Write Prefect's own Run Name, which the form begins with."""
        self.page.get_by_label("Run Name").fill(name)

    def write(self, field: str, value: str) -> None:
        """Write into a field."""
        self.page.get_by_label(field).fill(value)

    def add_to_list(self, values: list[str]) -> None:
        """Write into new lines of the form's only list."""
        for value in values:
            self.page.get_by_role("button", name="Add item").click()
            handle = self.page.get_by_role("button", name="Drag to reorder").last
            handle.locator("xpath=following-sibling::*//textarea").fill(value)

    def submit(self) -> str:
        """Submit a form that is in order, and go to the run that it started; its identifier."""
        self.submit_button.click()
        self.page.get_by_role("link", name="View run").click()
        self.menu_button.wait_for()
        found = re.search(r"/flow-run/([0-9a-f-]{36})", self.page.url)
        assert found is not None, self.page.url
        return found[1]

    @property
    def menu_button(self) -> Locator:
        """The three dots of a flow run."""
        return self.page.get_by_role("button", name="Open menu")

    def open_flow_run(self, flow_run_id: str) -> None:
        """Open a flow run's page by its address."""
        self.page.goto(f"{self.address}/v2/runs/flow-run/{flow_run_id}")
        self.menu_button.wait_for()

    def wait_for_state(self, state: State) -> None:
        """Wait until the flow run's page, which keeps itself up to date, shows a state."""
        self.page.get_by_role("main").get_by_text(state, exact=True).first.wait_for(timeout=RUN_S * 1000)

    def open_artifacts(self) -> None:
        """The flow run's tab of artefacts."""
        self.page.get_by_role("tab", name="Artifacts").click()

    def open_newest_artifact(self, key: str) -> None:
        """From the tab of artefacts to the newest of a key, whose parts are shown on a page of their own."""
        self.page.get_by_role("link", name=key).first.click()
        self.page.get_by_role("link", name=re.compile("^[0-9a-f]{8}$")).first.click()
