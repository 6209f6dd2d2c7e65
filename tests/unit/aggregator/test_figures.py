"""Costs, predictions, rates and metrics: figures from figures, without Redis."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ops.aggregator.backtest import Prediction, due, judged
from ops.aggregator.cost import cost_of
from ops.aggregator.figures import accept_length, busy_share
from ops.aggregator.history import WINDOW_S, History, summed
from ops.aggregator.metrics import METRICS, exposition


def test_costs() -> None:
    found = cost_of(usd_per_hour=20.0, elapsed_s=1800, left_s=3600, output_tokens=4_000_000, busy_share=0.75)
    assert (found.so_far, found.at_end, found.per_million_output_tokens, found.idle) == (10.0, 30.0, 2.5, 2.5)
    unknown = cost_of(20.0, 1800, None, 0, None)
    assert (unknown.so_far, unknown.at_end, unknown.per_million_output_tokens, unknown.idle) == (10.0, None, None, None)
    assert cost_of(0.0, 1800, 0, 5, 1.0).so_far == 0


@pytest.mark.parametrize(
    ("finished", "made", "mark"),
    [
        (0, [], None),
        (4, [], None),
        (5, [], 5),
        (24, [5], None),
        (25, [5], 25),
        (60, [], 50),
        (60, [5, 50], None),
        (100, [], None),
    ],
)
def test_a_prediction_is_due_once_at_each_mark_and_not_for_those_that_passed(finished: int, made: list[int], mark: int) -> None:
    assert due(finished, 100, made) == mark


def test_predictions_are_judged_against_what_was_really_left() -> None:
    late, early = judged([Prediction(50, 200.0, 120.0, 130.0), Prediction(5, 100.0, 100.0, None)], finished_at_s=300.0)[::-1]
    assert (late.prediction.mark, late.actual_s, late.off, late.within_p90) == (50, 100.0, 0.2, True)
    assert (early.prediction.mark, early.actual_s, early.off, early.within_p90) == (5, 200.0, -0.5, None)
    assert judged([Prediction(5, 400.0, 1.0)], 300.0) == []


def reading(completed: float, decoded: float | None = None) -> dict[str, str]:
    return {"completed": str(completed)} | ({} if decoded is None else {"engine_decoded_total": str(decoded)})


def test_rates_are_over_the_window_and_begin_anew_with_a_restart() -> None:
    history = History()
    assert history.rate("a", "completed") is None
    for second in range(0, 120, 2):
        history.add(float(second), {"a": reading(second * 3, second * 100)})
    assert history.rate("a", "completed") == pytest.approx(3)
    assert history.grown("a", "completed") == pytest.approx(3 * WINDOW_S)
    history.add(120.0, {"a": reading(0, 0)})
    assert history.rate("a", "completed") is None
    history.add(122.0, {"a": reading(8, 0)})
    assert history.rate("a", "completed") == 4
    assert history.rate("a", "failed") is None
    history.add(124.0, {"b": reading(1)})
    assert history.rate("a", "completed") is None, "it is gone"
    assert summed([None, 1.0, 2.5]) == 3.5
    assert summed([None]) is None


def test_the_fleets_accept_length_is_a_ratio_of_sums_and_no_mean() -> None:
    history = History()
    for at_s in (0.0, 10.0):
        history.add(at_s, {"fast": reading(0, at_s * 300), "slow": reading(0, at_s * 100), "plain": reading(0, at_s * 100)})
    workers = {"fast": {"engine_accept_length": "3"}, "slow": {"engine_accept_length": "2"}, "plain": {"slots": "4"}}
    assert accept_length(workers, history) == pytest.approx(400 / 150, abs=1e-4)  # the mean of the engines would be 2.5
    assert accept_length({"plain": {"slots": "4"}}, history) is None


def test_busy_slots_are_a_share_of_all_slots_over_all_lifetimes() -> None:
    old = {"started_at": "0", "updated_at": "100", "slots": "10", "busy_slot_seconds": "900"}
    new = {"started_at": "90", "updated_at": "100", "slots": "10", "busy_slot_seconds": "0"}
    assert busy_share([old]) == 0.9
    assert busy_share([old, new]) == pytest.approx(900 / 1100, abs=1e-4)
    assert busy_share([]) is None
    assert busy_share([{"slots": "10"}]) is None


def test_every_metric_has_a_name_of_prometheus_a_meaning_and_a_unit() -> None:
    names = [definition.name for definition in METRICS]
    assert len(set(names)) == len(names)
    for definition in METRICS:
        assert re.fullmatch(r"fleet_[a-z]+(_[a-z]+)*", definition.name)
        assert definition.name.endswith("_total") == (definition.kind == "counter")
        assert definition.meaning


def test_hostile_names_are_escaped_and_unknown_values_left_out() -> None:
    worker = {"name": 'gpu"0\n@h', "slots": 20.0, "gpu_power_w": None, "bottleneck": "tail"}
    run = {"run": "r", "status": "running", "total": 5, "failures": {'a"b\\': 2}, "eta_seconds": {"p50": 1.5, "p90": None}}
    document = {"at": 1.0, "queued_batches": 3, "fleet": {"workers": 1}, "workers": [worker], "runs": [run], "alarms": []}
    text = exposition(lambda: document).decode()
    found = {
        (one.name, tuple(sorted(one.labels.values()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    assert found["fleet_worker_slots", ('gpu"0\n@h',)] == 20
    assert found["fleet_run_failures", ('a"b\\', "r")] == 2
    assert found["fleet_run_left_seconds", ("p50", "r")] == 1.5
    assert found["fleet_queued_batches", ()] == 3
    assert found["fleet_workers", ()] == 1
    assert not [name for name, _ in found if name == "fleet_gpu_power_watts"]
    assert ("fleet_run_left_seconds", ("p90", "r")) not in found
    assert exposition(lambda: None) == b""
