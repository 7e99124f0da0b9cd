"""Short runs to their end: of another's export, of pairs, of objectives, families and clips, of a curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.exploration.learning_curve import make_curve
from flows.post_train import post_train
from gpu_runtime.dispatch.given_pairs import GIVEN
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError
from storage.home import Home
from storage.pictures import picture_file, read_frames
from storage.record.queries.devices import sequence_groups
from storage.record.queries.runs import metric_curves
from storage.record.run_store import RunStore
from tasks.evaluation import evaluate_weights
from tasks.export import export_run
from tasks.inputs import refuse_changed_inputs
from tasks.report import report_file
from tests.given_pairs import pairs_file
from tests.pipeline_reference import family_config, own_pipeline
from tests.tiny_pipelines import save_pipeline
from tests.whole_runs import rows

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prefect")]


def adapted(*changes: str) -> RunConfig:
    settings = [
        "runtime.cluster=local", "runtime.spot_workers=1", "runtime.scorer_workers=1", "adaptation.mode=lora",
        "adaptation.rank=4", "optimizer.learning_rate=0.02", "tracking.to=[]", *changes,
    ]  # fmt: skip
    return load_config("smoke", settings, {})


def evaluation(home: Home, run_id: str, iteration: int) -> list[Any]:
    query = (
        "SELECT prompt_id, seed_index, score, png FROM evaluation_images "
        "WHERE run_id = ? AND iteration = ? ORDER BY prompt_id, seed_index"
    )
    return rows(home, query, run_id, iteration)


def test_a_run_from_another_one_s_export_begins_with_the_very_policy_and_trains_on(
    home: Home, tmp_path: Path
):
    post_train(adapted(), "first")
    lora = tmp_path / "lora"
    export_run(home, "first", lora)
    again = adapted(f"model.adapter={lora}", "model.reference=adapter", "algorithm.kl_weight=0.01")
    post_train(again, "second")
    ended, began = evaluation(home, "first", 2), evaluation(home, "second", 0)
    assert len(began) == 8 and began == ended
    assert began != evaluation(home, "first", 0)
    assert evaluation(home, "second", 2) != began
    export_run(home, "second", tmp_path / "next")
    assert "| Started from | " in (tmp_path / "next" / "README.md").read_text("utf-8")
    facts = RunStore(home).run("second").environment
    (tmp_path / "next" / "pytorch_lora_weights.safetensors").replace(
        lora / "pytorch_lora_weights.safetensors"
    )
    with pytest.raises(ConfigurationError, match=r"model\.adapter = .*lora' \(SHA-256 .*, was "):
        refuse_changed_inputs(facts, again)


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_before_an_average_begins_the_weights_are_scored_exported_and_scored_again(
    home: Home, tmp_path: Path, decay: float
):
    run_id, lora = f"decay-{decay}", tmp_path / "lora"
    config = adapted(f"optimizer.ema_decay={decay}", "optimizer.ema_interval=8")
    post_train(config, run_id)
    export_run(home, run_id, lora)
    ended = evaluation(home, run_id, 2)
    assert len(ended) == 8 and ended != evaluation(home, run_id, 0)
    adapter = config.changed(model={"adapter": str(lora)})
    for settings, of_run in ((config, run_id), (adapter, None)):
        found = evaluate_weights.fn(home, settings, of_run).evaluation
        again = [
            (one.request.prompt_id, one.request.seed_index, score.value, picture_file(one.image_HWC))
            for one, score in zip(found.samples, found.scores, strict=True)
        ]
        assert again == ended


def test_a_run_on_pairs_of_a_file(home: Home, tmp_path: Path):
    settings = [
        "algorithm.objective=dpo", "algorithm.group_size=2", f"prompts.train={pairs_file(tmp_path, 6)}",
        "runtime.cluster=local", "runtime.spot_workers=0", "runtime.scorer_workers=1", "tracking.to=[]",
    ]  # fmt: skip
    result = post_train(load_config("smoke", settings, {}), "run-pairs")
    assert result["iterations"] == 2
    found = rows(home, "SELECT seed_index, score, worker FROM samples WHERE run_id = 'run-pairs'")
    assert set(found) == {(0, 1.0, GIVEN), (1, 0.0, GIVEN)}
    with RunStore(home).reading() as connection:
        assert "pair_accuracy" in metric_curves(connection, "run-pairs")


@pytest.mark.parametrize("objective", ["grpo-guard", "awm", "dpo"])
def test_an_objective_without_a_preset_by_two_trainers(home: Home, objective: str):
    settings = [
        f"algorithm.objective={objective}", "algorithm.updates_per_iteration=2", "algorithm.kl_weight=0.01",
        "runtime.cluster=local", "runtime.reserved_workers=2", "runtime.trainer_workers=2",
        "runtime.spot_workers=0", "runtime.scorer_workers=1", "tracking.to=[]", "reward.scorer=jpeg",
    ]  # fmt: skip
    result = post_train(load_config("smoke", settings, {}), f"run-{objective}")
    assert result["iterations"] == 2
    assert result["max_ratio_deviation"] == 0.0
    with RunStore(home).reading() as connection:
        figures = metric_curves(connection, f"run-{objective}")
    assert ("pair_accuracy" in figures) == ("pair_margin" in figures) == (objective == "dpo")


def of_family(home: Home, run_id: str, family: str, folder: Path, **reward: Any) -> dict[str, Any]:
    """The result of a run of two iterations whose two devices share each sample."""
    config = family_config(
        family,
        save_pipeline(family, folder),
        reward=reward,
        runtime={"spot_workers": 1, "scorer_workers": 1, "cluster": "local"},
        evaluation={"prompts": 4},
        sequence_parallel={"rollout": 2},
        tracking={"to": []},
    )
    result = post_train(config.model_copy(update={"name": run_id, "iterations": 2}), run_id)
    assert result["iterations"] == 2
    assert result["max_ratio_deviation"] <= config.algorithm.ratio_tolerance
    with RunStore(home).reading() as connection:
        groups = sequence_groups(connection, run_id, 1, 2, 100)
    assert set(groups["members"]) == {"reserved-0+spot-0"}
    return result


def test_a_model_family_is_shared_trained_exported_and_loaded(home: Home, tmp_path: Path):
    result = of_family(home, "family", "qwen-image", tmp_path / "model", scorer="jpeg")
    assert 0 < result["score_before"] < 1
    answer = export_run(home, "family", tmp_path / "lora")
    assert answer["files"] == ["README.md", "curve.svg", "pytorch_lora_weights.safetensors"]
    own_pipeline("qwen-image", tmp_path / "model").load_lora_weights(answer["out"])


def test_clips_are_judged_learned_from_kept_and_shown(home: Home, tmp_path: Path):
    rewards = tmp_path / "mine.py"
    rewards.write_text(
        "def moves(frames, prompt):\n"
        "    first, last = (frame.resize((1, 1)).getpixel((0, 0))[0] for frame in frames)\n"
        "    return 0.5 + (last - first) / 510\n"
    )
    scorer = f"{rewards}:moves"
    assert (
        of_family(home, "clips", "wan2.2", tmp_path / "model", scorer=scorer, frames=2)["scorer_errors"] == 0
    )
    for table in ("evaluation_images", "sample_images"):
        [(clip,)] = rows(home, f"SELECT png FROM {table} WHERE run_id = 'clips' AND png IS NOT NULL LIMIT 1")
        assert read_frames(bytes(clip)).shape == (5, 32, 48, 3)
    report_file(home, "clips", tmp_path / "report.html")
    assert "data:image/webp;base64,UklGR" in (tmp_path / "report.html").read_text()


def test_a_curve_of_the_exploration_benchmark_is_that_of_a_run(home: Home):
    settings = [
        "iterations=3", "evaluation.every=1", "runtime.cluster=local", "runtime.scorer_workers=1",
        "sampling.batch_size=4",
        "exploration.candidates=8", "exploration.drafts=24", "exploration.stop_with_training=false",
        "exploration.strategy=off_policy", "tracking.to=[]",
    ]  # fmt: skip
    config = load_config("smoke", settings, {})
    curve = make_curve(config, 3, 1)
    post_train(config, "curve")
    found = rows(
        home, "SELECT iteration, score, exact FROM evaluations WHERE run_id = 'curve' ORDER BY iteration"
    )
    assert found == [*zip(curve.iterations, curve.score, curve.exact, strict=True)]
    assert sum(curve.drafts) > 0
    assert len(curve.beside_s) == 2, "the last iteration has none beside it"
    assert all(
        0 < beside_s < driver_s for beside_s, driver_s in zip(curve.beside_s, curve.driver_s, strict=False)
    )
