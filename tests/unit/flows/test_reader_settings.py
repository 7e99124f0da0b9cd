"""The settings of readers, the look at the server that they name, and what MLflow is given to write."""

from __future__ import annotations

import base64

import pytest
from pydantic import ValidationError

from flows.configuration import configuration_to_resume
from storage.config.run_config import RunConfig
from storage.config.tracking import READERS_VARIABLE, TRACKING_VARIABLE
from storage.errors import ConfigurationError
from storage.readers.figures import TOTAL_USD, figure_name
from storage.readers.mlflow_reader import flat_settings, refuse_silent_server
from tests.answering import answering
from tests.running_up import free_port


def test_a_login_and_a_last_slash_are_not_taken_into_the_settings():
    config = RunConfig.model_validate({"tracking": {"uri": "https://mlflow.example.org/team/"}})
    assert config.tracking.uri == "https://mlflow.example.org/team"
    with pytest.raises(ValidationError, match="set MLFLOW_TRACKING_USERNAME") as refusal:
        RunConfig.model_validate({"tracking": {"uri": "https://ada:secret@mlflow.example.org"}})
    assert "secret" not in str(refusal.value.errors()[0]["msg"])


def test_a_silent_server_and_another_program_are_refused_with_what_to_do():
    uri = f"http://127.0.0.1:{free_port()}"
    said = (
        rf"no MLflow server answers at tracking\.uri = '{uri}': .*Connection refused.*{TRACKING_VARIABLE}= in"
    )
    with pytest.raises(ConfigurationError, match=said):
        refuse_silent_server(uri, {})
    said = r"is not an MLflow server \(200: <html>hello\\n\)"
    with answering(200, "<html>hello\n") as uri, pytest.raises(ConfigurationError, match=said):
        refuse_silent_server(uri, {})


def test_a_server_that_asks_for_a_login_gets_mlflow_s():
    basic = f"Basic {base64.b64encode(b'ada:secret').decode()}"
    named = {"MLFLOW_TRACKING_USERNAME": "ada", "MLFLOW_TRACKING_PASSWORD": "secret"}
    with answering(200, "{}", basic) as uri:
        refuse_silent_server(uri, named)
        refuse_silent_server(uri, {"MLFLOW_TRACKING_AUTH": "a-plugin-s"})  # not ours to judge
        with pytest.raises(ConfigurationError, match=r"refuses this user \(401: You are not.*; set MLFLOW_"):
            refuse_silent_server(uri, named | {"MLFLOW_TRACKING_PASSWORD": "other"})
    with answering(200, "{}", "Bearer t") as uri:
        refuse_silent_server(uri, {"MLFLOW_TRACKING_TOKEN": "t"})


def test_where_figures_are_copied_changes_nothing_that_a_run_computes(monkeypatch: pytest.MonkeyPatch):
    there = RunConfig.model_validate({"tracking": {"uri": "http://gone.example.org"}})
    assert there.computes_like(RunConfig())
    assert not there.computes_like(RunConfig(seed=1))
    monkeypatch.delenv(TRACKING_VARIABLE, raising=False)
    assert configuration_to_resume(there) == there
    monkeypatch.setenv(TRACKING_VARIABLE, "")  # a run whose server is gone is resumed without it
    assert configuration_to_resume(there) == RunConfig()
    monkeypatch.setenv(READERS_VARIABLE, '["tensorboard"]')
    assert configuration_to_resume(there).tracking.to == ("tensorboard",)


def test_figures_stand_in_sections():
    sections = {
        "reward_mean": "score/reward_mean",
        "exact_share": "score/exact_share",
        "evaluation_score": "score/evaluation_score",
        "rollout_s": "phase_s/rollout",
        "explore_wait_s": "phase_s/explore_wait",
        "cost_usd": "cost/usd",
        "clip_share": "training/clip_share",
        "zero_std_ratio": "training/zero_std_ratio",
        "ms_per_image/rollout": "ms_per_image/rollout",
        "commits": "samples/commits",
        "spearman": "exploration/spearman",
        "reward_part_a:b": "score/reward_part_a-u003a-b",
        "evaluation_part_legs_s": "score/evaluation_part_legs_s",
        "evaluation_score.颜色": "score/evaluation_score.颜色",
    }
    assert {name: figure_name(name) for name in sections} == sections
    assert figure_name(TOTAL_USD) == "cost/total_usd"


def test_settings_become_flat_parameters():
    config = RunConfig.model_validate(
        {"reward": {"scorer": "sum", "options": {"parts": {"jpeg": 0.5, "ocr": {"weight": 1.0}}}}}
    )
    flat = flat_settings(config.model_dump(mode="json"))
    assert flat["reward.options.parts.jpeg"] == "0.5"
    assert flat["reward.options.parts.ocr.weight"] == "1.0"
    assert flat["optimizer.learning_rate"] == "0.0001"
    assert flat["exploration.fidelities"] == '["full"]'
    assert flat["exploration.stop_with_training"] == "true"
    assert flat["price.book"] == '""', "MLflow takes no empty text"
    assert all(isinstance(value, str) and value for value in flat.values())


def test_another_number_of_trainers_may_go_on_with_a_run_whose_bits_do_not_depend_on_it():
    runtime = {"reserved_workers": 3, "trainer_workers": 1}
    run = RunConfig.model_validate({"runtime": runtime, "algorithm": {"gradient_shards": 2}})
    resumed = configuration_to_resume(run, ["runtime.trainer_workers=2"])
    assert resumed.runtime.trainer_workers == 2 and resumed.computes_like(run)
    with pytest.raises(ConfigurationError, match=r"trainer_workers is 3, above algorithm\.gradient_shards=2"):
        configuration_to_resume(run, ["runtime.trainer_workers=3"])
    divided = RunConfig.model_validate({"runtime": runtime})
    other = divided.changed(runtime={"trainer_workers": 2})
    assert not other.computes_like(divided)
    with pytest.raises(ConfigurationError, match=r"--trainers is 2, but with algorithm\.gradient_shards=1"):
        configuration_to_resume(divided, ["runtime.trainer_workers=2"])
