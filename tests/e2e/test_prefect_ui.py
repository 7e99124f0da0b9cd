"""Runs started and watched in Prefect's UI by a real browser, under a real `spotlight up`.

Of what its Cancel sends, and of resuming by the form, `tests/integration/test_deployments.py` is the test.
The dashboard is looked at meanwhile and afterwards; its pictures in the documents are of this run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

import pytest
from playwright.sync_api import Locator, Page, expect

from flows.deployed.forms import PresetName, TrainingForm
from flows.server.note import home_password
from storage.evaluations.reproductions import reproduction_of
from storage.record.run_store import RunStore
from tests.browser import IN_CHROMIUM, Album, NewPage, open_page
from tests.running_up import RunningUp

pytestmark = [
    *IN_CHROMIUM,
    pytest.mark.slow,
    pytest.mark.xdist_group("up"),
    pytest.mark.timeout(1500),  # a whole run that explores, on two cores that have other things to do
]

EXPLORED = "explored"
ITERATIONS = 4
SMALL = [
    "algorithm.prompts_per_iteration=6", "exploration.prompts=9", "exploration.candidates=10",
    "evaluation.prompts=16", "evaluation.every=2", "runtime.cluster=local",
]  # fmt: skip
"""Makes a preset that explores small enough for a test."""


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
    """Prefect's UI of a `spotlight up`; of the two of Prefect 3.8 the one that its first page leads to.

    Everything is found by its role, label or text, which are what a person goes by.
    """

    def __init__(self, page: Page, api: str, password: str, with_graph: bool = False) -> None:
        self.page = page
        self.address = api.removesuffix("/api")
        page.set_default_timeout(ANSWER_S * 1000)
        if not with_graph:  # without a GPU it takes more of the processor than the run does
            page.add_init_script(_WITHOUT_GRAPH)
        self.page.goto(self.address)  # whoever has not logged in gets one page instead of any other
        self.page.get_by_placeholder("admin:pass").fill(password)
        self.page.get_by_role("button", name="Login", exact=True).click()
        self.page.get_by_role("link", name="Deployments", exact=True).wait_for()

    def open_form(self) -> None:
        """From Prefect's first page to the form of `post-train`, by what there is to click."""
        self.page.goto(self.address)
        self.page.get_by_role("link", name="Deployments", exact=True).click()
        # The first page, which stays a moment, has links of that name to flows.
        named = self.page.get_by_role("main").get_by_role("link", name="post-train", exact=True)
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
        """Return the options of a drop-down, and close it again."""
        self.page.get_by_label(field).click()
        self.page.get_by_role("option").first.wait_for()
        offered = self.page.get_by_role("option").all_inner_texts()
        self.page.keyboard.press("Escape")
        return offered

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


@dataclass(frozen=True)
class Started:
    """A run that a person started in the form: its identifier, and that of its flow run."""

    run_id: str
    flow_run_id: str


@pytest.fixture(scope="module")
def explored(new_page: NewPage, up: RunningUp) -> Started:
    """A run that goes on, or has ended: the tests that use it wait for what they look at."""
    with new_page(alone=False) as page:
        prefect = PrefectPages(page, up.api, home_password(up.home))
        prefect.open_form()
        prefect.choose("Preset", "glyphs-stale")
        prefect.write("Iterations", str(ITERATIONS))
        prefect.add_to_list(SMALL)
        prefect.write("Run Name", EXPLORED)  # Prefect's own, which the form begins with
        return Started(EXPLORED, prefect.submit())


def test_the_form_explains_every_field(new_page: NewPage, up: RunningUp, album: Album):
    with new_page(1200, 1180, alone=False) as page:
        prefect = PrefectPages(page, up.api, home_password(up.home))
        prefect.open_form()
        for field in TrainingForm.model_json_schema()["properties"].values():
            expect(page.get_by_text(f"{field['title']} (Optional)", exact=True)).to_be_visible()
            expect(page.get_by_text(field["description"].replace("\n", " "), exact=True)).to_be_visible()
        assert prefect.choices("Preset") == list(get_args(PresetName))
        prefect.choose("Preset", "glyphs-stale")
        prefect.write("Iterations", "16")
        prefect.add_to_list(["evaluation.every=4"])
        assert album.save(page, "prefect-form.png") > 100
        found = re.search(r"Prefect UI: (\S+)", up.log.read_text())
        assert found is not None
        page.goto(found[1])  # what `up` has printed is this UI
        page.get_by_role("main").get_by_role("link", name="post-train", exact=True).first.wait_for()
        assert page.url.startswith(found[1])


def test_a_bad_value_is_refused_in_words_and_starts_nothing(new_page: NewPage, up: RunningUp):
    before = up.flow_run_count()
    with new_page(alone=False) as page:
        prefect = PrefectPages(page, up.api, home_password(up.home))
        prefect.open_form()
        prefect.write("Iterations", "-1")
        prefect.submit_button.click()
        said = page.get_by_label("Iterations").evaluate("field => field.validationMessage")
        assert "0" in said, "the browser itself knows the bound"
        prefect.write("Iterations", "2")
        prefect.write("Run to resume", "../outside")
        prefect.submit_button.click()
        expect(page.get_by_text("'../outside' does not match").first).to_be_visible()
        prefect.submit_button.wait_for()
    assert up.flow_run_count() == before


def test_a_run_is_watched_from_running_to_completed(
    new_page: NewPage, up: RunningUp, explored: Started, album: Album
):
    with new_page(1400, 1050, alone=False) as page:
        prefect = PrefectPages(page, up.api, home_password(up.home))
        prefect.open_flow_run(explored.flow_run_id)
        prefect.wait_for_state("Running")
        watch_the_dashboard(page, f"{up.dashboard}/?run={explored.run_id}")
        page.goto("about:blank")  # the run's page would show each of its tasks meanwhile
        up.wait_for_end(explored.flow_run_id, RUN_S)
        prefect.open_flow_run(explored.flow_run_id)
        prefect.wait_for_state("Completed")
    with new_page(1400, 1050, alone=False) as page:
        prefect = PrefectPages(page, up.api, home_password(up.home), with_graph=True)
        prefect.open_flow_run(explored.flow_run_id)
        expect(page.get_by_text(re.compile(r"^\d+ Task runs$"))).to_be_visible()
        expect(page.get_by_text(f"run {explored.run_id}: iteration 0 of {ITERATIONS}")).to_be_visible()
        page.locator("canvas").first.wait_for()  # of the tasks
        assert album.save(page, "prefect-run.png") > 100
        page.get_by_role("tab", name="Artifacts").click()
        expect(page.get_by_role("link", name="MARKDOWN links")).to_be_visible()
        last = f"{explored.run_id}: iteration {ITERATIONS} of {ITERATIONS}, reward"
        expect(page.get_by_role("link", name="progress")).to_contain_text(last)
        expect(page.get_by_text("Result of the run").first).to_be_visible()
        assert album.save(page, "prefect-artifacts.png") > 100
        # The newest of a key has its parts on a page of their own.
        page.get_by_role("link", name="result").first.click()
        page.get_by_role("link", name=re.compile("^[0-9a-f]{8}$")).first.click()
        score = RunStore(up.home).run(explored.run_id).summary["score_after"]
        expect(page.get_by_text("score_after", exact=True)).to_be_visible()
        expect(page.get_by_text(f"{score:.6g}", exact=True).first).to_be_visible()
        assert album.save(page, "prefect-result.png") > 100


def watch_the_dashboard(page: Page, address: str) -> None:
    """A run's page, which nobody touches, until its first chart has got another point."""
    page.goto(address)
    expect(page.locator("h2")).to_contain_text("running", timeout=RUN_S * 1000)
    points = (
        "document.querySelector('.js-plotly-plot')?.querySelectorAll('.scatterlayer .points path').length"
    )
    page.wait_for_function(f"{points} > 0", timeout=RUN_S * 1000)
    first = page.evaluate(points)
    page.wait_for_function(f"{points} > {first}", timeout=RUN_S * 1000)
    expect(page.get_by_text(re.compile(rf"^\d+ of {ITERATIONS}$"))).to_be_visible()


@pytest.mark.parametrize(
    ("name", "last", "plots", "at_most_px"),
    [
        ("convergence", "Settings and environment", 4, 1470),
        ("seeds", "Best and worst seeds of a prompt", 3, None),
        ("spot", "The accounts", 3, None),
        ("cost", "Download the figures", 4, None),
        ("images", "One prompt, enlarged", 0, 1500),
        ("health", "Download the figures", 0, None),
        ("runs", "Time to a score", 2, None),
    ],
)
def test_the_pages_of_a_real_run_are_drawn(
    new_page: NewPage,
    up: RunningUp,
    explored: Started,
    album: Album,
    name: str,
    last: str,
    plots: int,
    at_most_px: int | None,
):
    up.wait_for_end(explored.flow_run_id, RUN_S)
    with new_page() as page:
        path = "" if name == "convergence" else name  # the first page has no path of its own
        open_page(page, f"{up.dashboard}/{path}?run={explored.run_id}", last, plots)
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert album.photograph(page, f"{name}.png", at_most_px) > 300


def test_a_run_done_again_is_shown_and_a_drift_is_red(
    new_page: NewPage, up: RunningUp, explored: Started, album: Album
):
    up.wait_for_end(explored.flow_run_id, RUN_S)
    form = {"reference": explored.run_id, "how": "evaluate", "settings": ["sampling.evaluate_steps=4"]}
    flow_run = up.start_run("reproduce", form, name="again").json()
    assert up.wait_for_end(flow_run["id"])["type"] == "FAILED"
    causes = [one for one in reproduction_of(up.home, "again").differences if one["kind"] != "result"]
    assert [one["what"] for one in causes] == ["sampling.evaluate_steps"], "all else is as it was"
    with new_page(1400, 760, alone=False) as page:
        open_page(page, f"{up.dashboard}/reproducibility", "What differs", 0)
        red = page.get_by_role("alert").first
        expect(red).to_contain_text("drifted")
        expect(red).to_contain_text("sampling.evaluate_steps was 10, is 4")
        assert album.photograph(page, "reproducibility.png") > 100
