"""`/metrics` for Prometheus and the dashboard of Grafana that reads it."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from flows.cli import command_line
from flows.server.metrics import families, metrics_application, metrics_server
from storage.environment import GIVES_VERDICT
from storage.errors import ConfigurationError, ServerError
from storage.home import Home
from storage.readers.figures import moments_after
from storage.record.records import JUDGE_USD, DeviceEvent
from storage.record.results import live_runs
from storage.record.run_folder import RUN_FILE
from storage.record.run_store import RunStore
from tests.sample_run import iteration_record, write_sample_run

ROOT = Path(__file__).resolve().parents[3]
BOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text(encoding="utf-8"))
TOKEN = "a-token-of-thirty-two-characters"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def ask(home: Home, path: str = "/metrics", token: str | None = None, given: str = "") -> tuple[int, str]:
    """Status and text of an answer, to a request with the token `given`."""
    headers = {"authorization": f"Bearer {given}"} if given else {}
    answer = TestClient(metrics_application(home, token)).get(path, headers=headers)
    return answer.status_code, answer.text


def values(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by metric, and by the labels beside the run."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for name, value in sorted(sample.labels.items()) if name != "run")
            found.setdefault(sample.name.removeprefix("spotlight_"), {})[labels] = sample.value
    return found


def test_a_run_is_shown_as_the_database_has_it(home: Home):
    store = RunStore(home)
    write_sample_run(store, "glyphs-1", iterations=3, status="running")
    last = iteration_record("glyphs-1", 4, 2_000.0)
    events = [DeviceEvent("spot-0", "spot", "lost", 2_010.0), DeviceEvent("spot-1", "spot", "lost", 2_011.0)]
    store.commit_iteration(replace(last, device_events=events))
    status, text = ask(home)
    assert status == 200
    found = values(text)
    assert found["run_info"] == {("glyphs", "running"): 1}
    assert (found["iteration"][()], found["iterations_planned"][()]) == (4, 40)
    assert found["reward"][()] == pytest.approx(last.metrics["reward_mean"])
    assert found["loss"][()] == pytest.approx(last.metrics["loss"])
    assert found["phase_seconds"] == {("iteration",): 18, ("rollout",): 9, ("train",): 7}
    # Two spot devices of 18 s each: 1 s of loading, 9 s of rollout, 8 s idle.
    assert found["devices"][("spot", "rollout")] == pytest.approx(1.0)
    assert found["devices"][("reserved", "train")] == pytest.approx(7 / 18)
    assert sum(found["devices"].values()) == pytest.approx(3)
    # One evaluation of 9 s and four iterations of 18 s, on one reserved and two spot devices.
    paid_s = 9 + 4 * 18
    assert sum(found["device_seconds"].values()) == pytest.approx(3 * paid_s)
    assert sum(found["cost_usd"].values()) == pytest.approx(paid_s * (10.98 + 2 * 2.51) / 3600)
    assert found["device_events_total"] == {("lost", "spot"): 2}
    assert 0 < found["score"][()] < 1


def test_no_counter_falls_where_a_resumed_run_repeats_iterations(home: Home):
    def counters() -> dict[str, float]:
        return {
            f"{sample.name} {sorted(sample.labels.items())}": sample.value
            for family in text_string_to_metric_families(ask(home)[1])
            if family.type == "counter"
            for sample in family.samples
        }

    store = RunStore(home)
    write_sample_run(store, "glyphs-1", iterations=2, status="running")
    for iteration, at in ((3, 2_000.0), (4, 2_018.0)):
        record = iteration_record("glyphs-1", iteration, at)
        events = [DeviceEvent("spot-0", "spot", "lost", at)]
        record = replace(record, metrics=record.metrics | {JUDGE_USD: 2.0}, device_events=events)
        store.commit_iteration(record)
    before, paid = counters(), values(ask(home)[1])["cost_usd"]
    store.discard_after("glyphs-1", 3)
    after, now_paid = counters(), values(ask(home)[1])["cost_usd"]
    assert before and {name for name in before if after[name] < before[name]} == set()
    assert now_paid[("spot", "rollout")] < paid[("spot", "rollout")] and ("spot", "lost") in now_paid
    assert sum(now_paid.values()) == pytest.approx(sum(paid.values())), "what is repeated stays paid for"


def test_no_share_of_exact_images_is_served_of_a_reward_without_a_verdict(home: Home):
    store = RunStore(home)
    write_sample_run(store, "glyphs-1", iterations=1, status="running")
    assert values(ask(home)[1]).keys() >= {"score", "exact_share"}
    store.set_fact("glyphs-1", GIVES_VERDICT, "no")
    assert values(ask(home)[1]).keys() & {"score", "exact_share"} == {"score"}
    with store.reading("glyphs-1") as connection:
        sent = {name for moment in moments_after(connection, "glyphs-1", -1) for name in moment.figures}
    assert "score/evaluation_score" in sent and "score/reward_mean" in sent
    assert not [name for name in sent if "exact" in name], "readers get none either"


def test_the_lag_is_counted_from_the_newest_record_of_a_run_that_goes_on(home: Home):
    store = RunStore(home)
    write_sample_run(store, "glyphs-1", iterations=1, status="running")
    with RunStore(home).reading() as connection:
        (run,) = live_runs(connection)
    by_name = {family.name: family for family in families([run], run.newest_at + 7.0)}
    assert [sample.value for sample in by_name["spotlight_commit_lag_seconds"].samples] == [7.0]
    store.set_status("glyphs-1", "finished")
    assert "spotlight_commit_lag_seconds{" not in ask(home)[1]


def test_running_runs_are_shown_or_else_the_newest(home: Home):
    store = RunStore(home)
    assert ask(home)[0] == 200, "a home without runs"
    write_sample_run(store, "first", iterations=1)
    write_sample_run(store, "second", iterations=1)
    assert 'run="second"' in ask(home)[1] and 'run="first"' not in ask(home)[1]
    store.create_run("third", store.run("first").config, {}, 1)
    assert 'run="third"' in ask(home)[1] and 'run="second"' not in ask(home)[1]


def test_only_the_endpoint_is_served_and_only_to_who_knows_the_token(home: Home):
    for path in ("/", "/docs", "/metrics/"):
        assert ask(home, path) == (404, "only /metrics is served\n")
    posted = TestClient(metrics_application(home, None)).post("/metrics")
    assert (posted.status_code, posted.text) == (405, "use GET for /metrics\n")
    assert ask(home, token=TOKEN)[0] == ask(home, token=TOKEN, given="another")[0] == 401
    assert ask(home, token=TOKEN, given=TOKEN)[0] == 200


def test_a_damaged_run_is_an_answer_and_not_an_end(home: Home):
    write_sample_run(RunStore(home), "r", iterations=1)
    (home.run("r") / RUN_FILE).write_bytes(b"not JSON" * 1000)
    status, text = ask(home)
    assert status == 503
    assert f"{RUN_FILE} is damaged" in text


def test_an_address_that_others_reach_needs_a_token(home: Home, tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"--host 0\.0\.0\.0 would show all runs.*--token-file"):
        metrics_server(home, 9464, "0.0.0.0")
    file = tmp_path / "token"
    file.write_text("short")
    file.chmod(0o600)
    with pytest.raises(ConfigurationError, match="32 characters or more, and has 5"):
        metrics_server(home, 9464, "0.0.0.0", token_file=file)
    file.write_text(TOKEN)
    file.chmod(0o644)
    with pytest.raises(ConfigurationError, match="others can read it; run `chmod 600"):
        metrics_server(home, 9464, "0.0.0.0", token_file=file)
    with pytest.raises(ConfigurationError, match="is not a host name"):
        metrics_server(home, 9464, names=["http://x"])


def test_a_port_in_use_is_refused(home: Home):
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ServerError, match=r"is in use .*; choose another with `spotlight metrics --port`"),
    ):
        metrics_server(home, taken.getsockname()[1])


def test_a_foreign_page_is_refused(home: Home):
    """The guard of the dashboard stands before it."""
    guarded: Any = metrics_server(home, 9464).config.app
    assert TestClient(guarded, "http://evil.example").get("/metrics").status_code == 403


def test_the_command_says_where_and_serves(home: Home, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    served: list[Any] = []
    monkeypatch.setenv("SPOTLIGHT_HOME", str(home.path))
    monkeypatch.setattr("uvicorn.Server.run", lambda server: served.append(server))
    monkeypatch.setattr("sys.argv", ["spotlight", "metrics", "--port", "9471"])
    with pytest.raises(SystemExit):
        command_line.main()
    assert capsys.readouterr().err == "metrics: http://127.0.0.1:9471/metrics\n"
    assert [(server.config.host, server.config.port) for server in served] == [("127.0.0.1", 9471)]


def test_the_dashboard_of_grafana_asks_for_what_the_endpoint_has(home: Home):
    write_sample_run(RunStore(home), "glyphs-1", iterations=1)
    text = ask(home)[1]
    served = {name: family.name for family in text_string_to_metric_families(text) for name in (
        f"{family.name}_total" if family.type == "counter" else family.name,
    )}  # fmt: skip
    labels = {"run", "market", "state", "kind", "phase", "name", "status"}
    asked = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
    for expression in asked:
        names = re.findall(r"spotlight_[a-z_]+", expression)
        assert names and set(names) <= set(served), expression
        grouped = re.findall(r"by \(([a-z, ]+)\)", expression)
        assert {word for group in grouped for word in group.split(", ")} <= labels
    shown = {name for expression in asked for name in re.findall(r"spotlight_[a-z_]+", expression)}
    assert set(served) - shown == {"spotlight_last_commit_timestamp_seconds"}
    for panel in BOARD["panels"]:
        legends = re.findall(r"\{\{(\w+)\}\}", " ".join(t["legendFormat"] for t in panel["targets"]))
        assert set(legends) <= labels
    (runs,) = [one for one in BOARD["templating"]["list"] if one["name"] == "run"]
    assert runs["definition"] == "label_values(spotlight_run_info, run)"
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in BOARD["panels"])
