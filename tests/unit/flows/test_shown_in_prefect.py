"""What Prefect's UI shows of a run: names of tasks and of the run, the way to the dashboard, the log."""

from __future__ import annotations

import json
import logging
import re
import socket
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect import Task

import flows.artifacts
from flows import start
from flows.artifacts import name_given_in_prefect, show_links
from flows.deployed import deployments
from flows.deployed.forms import NIGHTLY_CRON, NIGHTLY_ZONE, EvaluationForm, ReproductionForm
from flows.deployed.up import where_to_look
from flows.process import ended_flow_runs
from flows.run_identity import is_made_up
from flows.server.note import LOOPBACK, SERVER_PORT, ServerNote
from storage.config.run_config import RunConfig
from storage.config.tracking import TrackingConfig
from storage.errors import ConfigurationError
from storage.home import DASHBOARD_URL_VARIABLE, Home, dashboard_page
from storage.record.run_store import RunStore

DOCS = Path(__file__).parents[3] / "docs"
TASK_MODULES = ("tasks.evaluation", "tasks.iteration.phases", "tasks.pretrain")


def tasks_of_a_run() -> dict[str, Task[..., Any]]:
    modules = [import_module(name) for name in TASK_MODULES]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Task)]
    return {task.name: task for task in found}


def test_each_task_has_a_name_of_our_making():
    folder = DOCS.with_name("tasks")
    with_tasks = {
        ".".join(file.relative_to(folder.parent).with_suffix("").parts)
        for file in folder.rglob("*.py")
        if "\n@task" in file.read_text(encoding="utf-8")
    }
    assert with_tasks == set(TASK_MODULES)
    assert [name for name, task in tasks_of_a_run().items() if not task.task_run_name] == []


def test_tasks_of_an_iteration_carry_its_number():
    plan = SimpleNamespace(iteration=7)
    given = {
        "iteration": 7, "plan": plan, "rolled": SimpleNamespace(plan=plan),
        "record": SimpleNamespace(iteration=7), "session": object(), "scores": [], "refused": None,
    }  # fmt: skip
    tasks = tasks_of_a_run()
    for name in ("explore", "rollout", "reward", "train", "commit", "evaluate", "record-evaluation"):
        template = tasks[name].task_run_name
        assert isinstance(template, str)
        assert template.format(**given) == f"{name} 7"


def test_names_that_prefect_or_its_server_makes_up_are_told_from_a_person_s():
    from prefect.utilities.names import generate_slug

    made_up = ["Tasty-Akita", "Awesome-Cat", "Rustic-Saola", *(generate_slug(2) for _ in range(200))]
    own = ["baseline", "my-run", "glyphs-3", "tasty-akita-2", "Small-experiment", "lion"]
    assert [name for name in made_up + own if not is_made_up(name)] == own


@pytest.mark.parametrize(
    ("name", "count", "given"), [("mine", 1, "mine"), ("Tasty-Akita", 1, None), ("mine", 2, None)]
)
def test_the_run_name_becomes_the_identifier_once(
    name: str, count: int, given: str | None, monkeypatch: pytest.MonkeyPatch
):
    named = SimpleNamespace(get_name=lambda: name, get_run_count=lambda: count)
    monkeypatch.setattr(flows.artifacts, "flow_run", named)
    assert name_given_in_prefect() == given


def test_all_flow_runs_of_ended_processes_are_closed_though_prefect_answers_with_200(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gone = json.dumps([socket.gethostname(), 2**22 + 1, 1.0, 1])
    labels = {ended_flow_runs.PROCESS: gone, ended_flow_runs.HOME: str(tmp_path)}
    left = [SimpleNamespace(id=uuid4(), name="r", labels=labels, run_count=1, state=None) for _ in range(450)]
    given = [one.id for one in left]

    class Client:
        def read_flow_runs(self, offset: int = 0, **_: object) -> list[SimpleNamespace]:
            return left[offset : offset + 200]

        def read_flow_run(self, flow_run_id: UUID) -> SimpleNamespace:
            return next(one for one in left if one.id == flow_run_id)

        def set_flow_run_state(self, flow_run_id: UUID, *_: object, **__: object) -> None:
            left[:] = [one for one in left if one.id != flow_run_id]
            closed.append(flow_run_id)

    closed: list[UUID] = []
    client = "prefect.client.orchestration.get_client"
    monkeypatch.setattr(client, lambda sync_client: nullcontext(Client()))
    ended_flow_runs.close_flow_runs_of_ended_processes(Home(tmp_path))
    assert closed == given


def test_a_run_links_to_all_places_where_it_can_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[tuple[str, str]] = []
    monkeypatch.setattr(
        flows.artifacts, "create_markdown_artifact", lambda text, key, **_: made.append((key, text))
    )
    monkeypatch.setattr(flows.artifacts, "flow_run_page", lambda: "http://127.0.0.1:4200/v2/runs/flow-run/1")
    monkeypatch.delenv(DASHBOARD_URL_VARIABLE, raising=False)
    show_links("mine", Home(tmp_path), TrackingConfig())
    monkeypatch.setenv(DASHBOARD_URL_VARIABLE, "http://127.0.0.1:8600/")
    show_links("mine", Home(tmp_path), TrackingConfig(uri="http://mlflow:5000"))
    assert [key for key, _ in made] == ["links", "links"], "one artefact a run"
    by_hand, by_link = (text.splitlines() for _, text in made)
    assert by_hand == [
        "- Dashboard: `spotlight ui`, then `?run=mine` after its address",
        "- Report: the button *Report* of the dashboard, or `spotlight report mine`",
        "- MLflow: after its first iteration: `mlflow ui --host 127.0.0.1 --port 5000 --backend-store-uri "
        f"sqlite:///{tmp_path}/mlflow.db`, then <http://127.0.0.1:5000/#/experiments?workflowType=machine_learning>",
        "- Prefect: [this flow run](http://127.0.0.1:4200/v2/runs/flow-run/1)",
    ]
    assert by_link[0] == "- Dashboard: [mine](http://127.0.0.1:8600/?run=mine)"
    page = "http://mlflow:5000/#/experiments?workflowType=machine_learning"
    assert by_link[2] == f"- MLflow: [http://mlflow:5000]({page}), after its first iteration"
    show_links("mine", Home(tmp_path), TrackingConfig(to=()))
    assert "MLflow" not in made[-1][1]
    assert dashboard_page("a b") == "http://127.0.0.1:8600/?run=a%20b"


def test_no_line_says_that_a_task_went_well():
    def is_shown(logger: str, level: int, message: str) -> bool:
        record = logging.LogRecord(logger, level, __file__, 1, message, None, None)
        return bool(logging.getLogger(logger).filter(record))

    well = "Finished in state Completed()"
    assert not is_shown("prefect.task_runs", logging.INFO, well)
    assert is_shown("prefect.task_runs", logging.INFO, "said by the task itself")
    assert is_shown("prefect.task_runs", logging.ERROR, "Finished in state Failed('why')")
    assert is_shown("prefect.flow_runs", logging.INFO, well), "once a run"


def test_up_prints_the_address_of_the_ui_that_the_documents_show(tmp_path: Path):
    """Prefect has two UIs; pictures and words are of the one under /v2."""
    schedule = (False, NIGHTLY_CRON, NIGHTLY_ZONE)
    said = where_to_look(Home(tmp_path), ServerNote(LOOPBACK, SERVER_PORT), "", schedule)
    printed = set(re.findall(r"http://127\.0\.0\.1:4200\S*", said))
    assert printed == {"http://127.0.0.1:4200/v2/deployments"}
    page = (DOCS / "reference" / "server.md").read_text()
    assert set(re.findall(r"<(http://127\.0\.0\.1:4200[^>]*)>", page)) == printed


def test_each_milestone_of_simulated_policies_has_its_spread(monkeypatch: pytest.MonkeyPatch):
    made: list[Any] = []
    monkeypatch.setattr(flows.artifacts, "create_table_artifact", lambda rows, **_: made.append(rows))
    monkeypatch.setattr(flows.artifacts, "create_markdown_artifact", lambda text, **_: made.append(text))
    cost = {"low": 1.0, "median": 2.0, "high": 3.0}
    both = {"median": 7200.0, "learning": cost, "system": cost}
    policies = [{"policy": "spot", "usd": cost, "milestones": [{"share": 0.5, "usd": cost, "time_s": both}]}]
    said = {"answer": "spot", "counted_in_words": "", "conclusions": ["spot is cheaper"], "basis": ["prices"]}
    flows.artifacts.show_simulated({"policies": policies, **said}, "a table")
    rows, text = made
    assert rows == [{"policy": "spot", "usd": "2 [1, 3]"}]
    assert text.splitlines() == [
        "spot", "", "```", "a table", "```", "",
        "- spot is cheaper", "",
        "| policy | share | usd | time_s |", "|---|---|---|---|",
        "| spot | 0.5 | 2 [1, 3] | 7,200 (learning 1 to 3; system 1 to 3) |", "",
        "- prices",
    ]  # fmt: skip


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls to Prefect, each with its identifier; the user has named the flow runs \"mine\"."""
    done: list[Any] = []
    monkeypatch.setenv("SPOTLIGHT_HOME", str(tmp_path))
    for name in ("gone_soon_when_cancelled", "shown_in_prefect"):
        monkeypatch.setattr(deployments, name, nullcontext)
    monkeypatch.setattr(deployments, "name_given_in_prefect", lambda: "mine")
    monkeypatch.setattr(deployments, "name_flow_run", done.append)
    for name in ("run_preflight", "show_result", "show_differences"):
        monkeypatch.setattr(deployments, name, lambda *_: None)
    return done


def test_an_evaluation_has_the_given_name(called: list[Any], monkeypatch: pytest.MonkeyPatch):
    def evaluate(*_: object, evaluation_id: str, preset: str) -> dict[str, Any]:
        called.append((evaluation_id, preset))
        return {}

    monkeypatch.setattr(start, "evaluated_configuration", lambda *_: (RunConfig(), "glyphs"))
    monkeypatch.setattr("flows.evaluate.evaluate_model", SimpleNamespace(fn=evaluate))
    deployments.evaluate_by_form.fn(EvaluationForm())
    assert called == ["mine", ("mine", "glyphs")]


def test_an_evaluation_without_a_name_needs_no_whole_record(
    tmp_path: Path, called: list[Any], monkeypatch: pytest.MonkeyPatch
):
    broken = Home(tmp_path).run("other")
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{")
    monkeypatch.setattr(deployments, "name_given_in_prefect", lambda: None)
    monkeypatch.setattr(start, "evaluated_configuration", lambda *_: (RunConfig(name="mine"), "glyphs"))
    monkeypatch.setattr("flows.evaluate.evaluate_model", SimpleNamespace(fn=lambda *_, **__: {}))
    deployments.evaluate_by_form.fn(EvaluationForm())
    assert [name.startswith("evaluate-mine-") for name in called] == [True]


def test_a_reproduction_has_the_given_name(
    called: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def do_again(form: ReproductionForm, run_id: str, named: object) -> Any:
        called.append(run_id)
        return SimpleNamespace(summary=dict, differences=[])

    module = SimpleNamespace(do_again=do_again, refuse_drift=lambda done: None)
    monkeypatch.setattr(deployments.importlib, "import_module", lambda name: module)
    deployments.reproduce_by_form.fn(ReproductionForm())
    assert called == ["mine"]
    RunStore(Home(tmp_path)).create_run("mine", RunConfig(), {}, 1)
    with pytest.raises(ConfigurationError, match="exists already"):
        deployments.reproduce_by_form.fn(ReproductionForm())
