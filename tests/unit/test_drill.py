"""The drill's plan, its accounting and what it says: what breaks a guarantee is told, and what does not is not."""

from typing import Any

import pytest

from ops.drill.faults import STRIKES
from ops.drill.measure import Asked, Fault, Round, RunProof, attribute
from ops.drill.plan import KINDS, OUTAGE_S, plan
from ops.drill.rehearsal import users_store
from ops.drill.report import fault_line, round_document, round_line, summary

WITHIN_S = 20.0


def proof(**changes: Any) -> RunProof:
    audit = {"rows": 100, "ok": 99, "failed": 1, "missing": 0, "corrupt": 0, "doubled": 0, "orphan": 0}
    status = {"completed": 99, "failed": 1, "pending": 0}
    return RunProof(
        "r",
        100,
        audit | {name: value for name, value in changes.items() if name in audit and name != "failed"},
        status | {name: value for name, value in changes.items() if name in {"completed", "pending"}},
    )


def fault(**changes: Any) -> Fault:
    given: dict[str, Any] = {
        "kind": "worker-killed",
        "at": 10.0,
        "within_s": WITHIN_S,
        "target": "gpu0",
        "may_repeat": 20,
        "back_s": 16.0,
    }
    return Fault(**(given | changes))


def whole(**changes: Any) -> Round:
    return Round(seed=1, faults=[fault(**changes)], proofs=[proof()])


def test_the_same_seed_gives_the_same_faults_at_the_same_moments_and_every_kind_has_its_turn() -> None:
    assert plan(7, KINDS, 3) == plan(7, KINDS, 3)
    assert plan(7, KINDS, 3) != plan(8, KINDS, 3)
    assert {strike.kind for seed in range(50) for strike in plan(seed, KINDS, 2)} == set(KINDS)
    assert sorted(strike.kind for strike in plan(1, KINDS, 99)) == sorted(KINDS)
    assert all(OUTAGE_S[0] <= strike.lasts_s <= OUTAGE_S[1] for strike in plan(1, KINDS, 99))


def test_every_kind_of_the_plan_can_be_struck() -> None:
    assert tuple(STRIKES) == KINDS


def test_an_aim_finds_each_worker_whatever_their_order() -> None:
    aimed = [plan(seed, ["worker-killed"], 1)[0].target(["gpu1", "gpu0"]) for seed in range(20)]
    assert set(aimed) == {"gpu0", "gpu1"}
    assert aimed == [plan(seed, ["worker-killed"], 1)[0].target(["gpu0", "gpu1"]) for seed in range(20)]


def test_a_whole_round_breaks_nothing() -> None:
    assert whole().broken() == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"missing": 2, "pending": 2}, ["G1: 2 prompts lost"]),
        ({"missing": 2}, ["G1: 2 prompts lost", "G2: 2 rows doubled or miscounted"]),
        ({"corrupt": 1}, ["G1: 1 prompts lost"]),
        ({"rows": 97}, ["G1: 3 prompts lost"]),
        ({"rows": 101}, ["G2: 1 rows doubled or miscounted"]),
        ({"doubled": 3}, ["G2: 3 rows doubled or miscounted"]),
        ({"orphan": 1}, ["G2: 1 rows doubled or miscounted"]),
        ({"completed": 98}, ["G2: 1 rows doubled or miscounted"]),
        ({"completed": 100, "pending": -1}, ["G2: 1 rows doubled or miscounted"]),
        ({"pending": 4}, ["G2: 4 rows doubled or miscounted"]),
    ],
)
def test_what_audit_or_the_counters_say_is_told(changes: dict[str, int], told: list[str]) -> None:
    one = whole()
    one.proofs = [proof(**changes)]
    assert one.broken() == told


def test_a_repeat_counts_for_the_last_fault_that_met_its_prompt() -> None:
    first = fault(at=10.0, touched=frozenset({"a", "b"}))
    second = fault(kind="redis-killed", at=20.0, may_repeat=0)
    asked = [Asked("gpu0", digest, start) for digest, start in [("a", 5.0), ("b", 6.0), ("c", 7.0)]]
    late = [Asked("gpu1", "a", 25.0), Asked("gpu1", "b", 15.0), Asked("gpu1", "d", 26.0)]
    assert attribute([second, first], late + asked) == 0
    assert (first.regenerated, second.regenerated) == (2, 0)
    assert attribute([second], [*asked, Asked("gpu1", "c", 25.0)]) == 0
    assert second.broken() == [
        "G3: redis-killed gpu0: 1 prompts generated again, at most 0 may be",
    ]


def test_a_repeat_that_no_fault_explains_is_told() -> None:
    one = whole()
    left_out = fault(at=1.0, left_out="no work")
    one.unexplained = attribute([*one.faults, left_out], [Asked("gpu0", "a", 2.0), Asked("gpu0", "a", 3.0)])
    assert one.broken() == ["G3: 1 prompts generated again before any fault"]
    assert one.regenerated == 1


def test_repeating_more_than_was_in_flight_is_told_though_another_fault_might_have_repeated_more() -> None:
    one = whole(regenerated=21)
    one.faults.append(fault(kind="redis-emptied", target="", may_repeat=100))
    assert one.broken() == ["G3: worker-killed gpu0: 21 prompts generated again, at most 20 may be"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"back_s": 20.1}, ["G4: worker-killed gpu0: back after 20.1 s, wanted within 20 s"]),
        ({"back_s": None}, ["G4: worker-killed gpu0: not back, wanted within 20 s"]),
        ({"all_back_s": 60.0}, []),
        ({"freed_s": 21.0}, ["G4: worker-killed gpu0: back after 21.0 s, wanted within 20 s"]),
        ({"back_s": None, "left_out": "no proxy"}, []),
        ({"back_s": 35.0, "within_s": 50.0}, []),
    ],
)
def test_being_back_late_or_never_is_told_and_what_was_left_out_is_not(changes: dict[str, Any], told: list[str]) -> None:
    assert whole(**changes).broken() == told


def test_a_round_that_did_not_end_is_broken_whatever_else_holds() -> None:
    one = Round(seed=3, unfinished="run r complete: not within 300 s")
    assert one.broken() == ["not finished: run r complete: not within 300 s"]
    assert "nothing proven" in round_line(one)


def test_the_summary_counts_each_kind_and_names_the_rounds_that_broke() -> None:
    late = whole(at=1.0, back_s=25.0, regenerated=3)
    late.seed = 2
    late.faults.append(fault(kind="store-cut", left_out="a folder"))
    late.proofs = [proof(missing=4, pending=4)]
    told = summary([whole(), late], 2)
    assert told["faults"] == {
        "store-cut": {
            **dict.fromkeys(("struck", "lost", "doubled", "regenerated", "may_repeat", "not_back"), 0),
            "left_out": 1,
            "median_back_s": None,
            "worst_back_s": None,
            "worst_all_back_s": None,
        },
        "worker-killed": {
            **{"struck": 2, "left_out": 0, "lost": 4, "doubled": 0, "regenerated": 3, "may_repeat": 40, "not_back": 0},
            "median_back_s": 20.5,
            "worst_back_s": 25.0,
            "worst_all_back_s": None,
        },
    }
    assert (told["broken_rounds"], told["prompts"], told["lost"], told["rounds_wanted"]) == ([2], 200, 4, 2)


def test_lines_and_documents_tell_the_same() -> None:
    one = whole(outage_s=4.0)
    assert fault_line(one.faults[0]) == "worker-killed gpu0 after 4.0 s: back in 16.0 s"
    assert fault_line(fault(left_out="no work")) == "worker-killed gpu0: left out, no work"
    assert fault_line(fault(back_s=None)) == "worker-killed gpu0: not back in time"
    assert round_line(one).endswith("lost 0, doubled 0, failed 1, regenerated 0 of 20 allowed; whole")
    assert round_document(one)["broken"] == []


@pytest.mark.parametrize(
    ("store", "environment", "told"),
    [
        ("file:///data", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "FLEET_STORE is a folder"),
        ("s3://bucket/x", {}, "AWS_ENDPOINT_URL names no server"),
        ("s3://bucket/x", {"AWS_ENDPOINT_URL": "https://127.0.0.1:1"}, "an endpoint with TLS"),
    ],
)
def test_a_store_that_no_proxy_can_stand_before_says_why(store: str, environment: dict[str, str], told: str) -> None:
    place = users_store(store, environment)
    assert (place.url, place.environment, place.proxy) == (store, {}, None)
    assert told in place.uncut


def test_a_users_s3_at_an_endpoint_of_plain_http_goes_through_a_proxy() -> None:
    place = users_store("s3://bucket/x", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1/base"})
    assert place.proxy is not None
    try:
        assert set(place.environment.values()) == {f"http://127.0.0.1:{place.proxy.port}/base"}
        assert set(place.environment) == {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"}
        assert place.uncut == ""
    finally:
        place.proxy.stop()
