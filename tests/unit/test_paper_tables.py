from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import paper_tables, rlboost_table, simulator, spotlight_table
from benchmarks.paper_tables_document import document
from benchmarks.rlboost_table import MODELS, QUICK, break_even, half_of, simulate, steady
from benchmarks.streamed_run import StreamedRun
from gpu_runtime.spot.traces.files import read_trace


def test_equal_requests_on_equal_instances_take_what_the_formula_says():
    model = MODELS[0]
    work = replace(model.workload(4), spread=0.0, mean_tokens=100.0, prefill_token_s=0.0)
    run = StreamedRun(work, model.plan, rlboost_table.Ways(), None).run(0.0)
    each = 4 * 8 // 4  # on each of four instances
    rollout_s = 100 * (work.token_s + each * work.row_s)
    tokens = 4 * 8 * (100 + work.prompt_tokens)
    by_hand = work.weights_s + rollout_s + tokens * work.train_token_s + work.update_s
    assert run.iteration_s == pytest.approx([by_hand], abs=1e-6)
    assert run.tokens == tokens
    assert run.usd == pytest.approx(by_hand / 3600 * 4 * 2 * rlboost_table.RESERVED_USD)


def test_spot_instances_speed_up_and_a_loss_does_not():
    model = MODELS[0]
    alone = simulate(model, QUICK, None)
    helped = simulate(model, QUICK, steady(3))
    start_s = model.workload(QUICK.prompts).start_s
    lost = [
        simulate(model, QUICK, steady(3, [(start_s + 40.0, 2)]), rlboost_table.Ways(migrates=migrates))
        for migrates in (True, False)
    ]
    assert helped.iteration_s[0] < alone.iteration_s[0]
    assert helped.iteration_s[0] <= lost[0].iteration_s[0] <= lost[1].iteration_s[0]
    assert [run.tokens for run in lost] == [alone.tokens] * 2
    assert lost[0].losses == 2


def test_half_of_a_trace_has_whole_lives():
    trace = read_trace(paper_tables.TRACES / "bamboo-g4dn.csv")
    half = half_of(trace, 0)
    assert 0.3 < len(half.events) / len(trace.events) < 0.7
    assert half == half_of(trace, 0) != half_of(trace, 1)


def test_at_the_break_even_discount_a_dollar_buys_as_much():
    discount = break_even(1.5, spot=4.0, reserved=4)
    assert 1.5 / (1 + 4.0 * (1 - discount) / 4) == pytest.approx(1.0)


def test_the_tables_have_every_figure_of_the_papers():
    figures = paper_tables.figures(quick=True)
    for name in ("cost_ratio_worst", "cost_ratio_best", "time_ratio"):
        found = figures["spotlight"][name]
        assert found["low"] <= found["median"] <= found["high"]
        assert found["theirs"] == {"cost_ratio_worst": 1.4, "cost_ratio_best": 6.4, "time_ratio": 4.0}[name]
    rlboost = figures["rlboost"]
    others = tuple(model.name for model in MODELS[QUICK.models :])
    assert rlboost["rows"].keys() == {name for name in rlboost_table.THEIRS if not name.endswith(others)}
    near = 0
    for name, row in rlboost["rows"].items():
        assert row["theirs"] == rlboost_table.THEIRS[name]
        near += abs(row["median"] - row["theirs"]) <= 0.15 * row["theirs"]
    assert rlboost["within_15_percent"] == f"{near} of {len(rlboost['rows'])}"
    assert (rlboost["within"], rlboost["compared"]) == (near, len(rlboost["rows"]))
    text = document(figures, "abc")
    assert rlboost["within_15_percent"] in text and "`critical-path`" in text
    assert ", ".join(figures["spotlight"]["zones"]) in text
    assert f"{rlboost['tokens_per_s_of_reserved'][MODELS[0].name]:,.0f}" in text
    assert "{" not in text


def test_groups_that_stay_and_restart_cold_take_longer():
    trace = read_trace(paper_tables.TRACES / "bamboo-p3.csv")
    scale = spotlight_table.Scale(futures=2, iterations=10, sizes=(1280,))
    rows = spotlight_table.figures(trace, scale)["settings"]["ocr-1280"]["baselines"]
    assert rows[spotlight_table.STATIC]["system_time"]["low"] > rows["spot"]["system_time"]["high"] == 1.0


def test_more_devices_have_more_events_and_the_same_work_each():
    few, many = (simulator.simulate(devices, 2).run for devices in (10, 40))
    assert many.batches == 4 * few.batches == 4 * 10 * 4 * 2
    row = simulator.measure(10, 1, events=400)
    assert row["runs"] > 1 and row["events"] >= 400
