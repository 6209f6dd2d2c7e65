"""The drill's plan and its accounting: what breaks a guarantee is told, and what does not is not."""

from collections import Counter
from typing import Any

import pytest

from ops.drill.faults import KINDS, plan
from ops.drill.measure import BACK_WITHIN_S, Fault, Round, RunProof, summary


def proof(**changes: Any) -> RunProof:
    audit = {"rows": 100, "ok": 99, "failed": 1, "missing": 0, "corrupt": 0, "doubled": 0, "orphan": 0}
    status = {"completed": 99, "failed": 1, "pending": 0}
    return RunProof(
        "r",
        audit | {name: value for name, value in changes.items() if name in audit and name != "failed"},
        status | {name: value for name, value in changes.items() if name in {"completed", "pending"}},
    )


def whole() -> Round:
    return Round(
        seed=1,
        faults=[Fault("worker-killed", 3.0, "gpu0", may_repeat=20, back_s=16.0)],
        proofs=[proof()],
        begun=Counter({"a": 1, "b": 2}),
        prompts=100,
    )


def test_the_same_seed_gives_the_same_faults_and_every_kind_has_its_turn() -> None:
    kinds = list(KINDS)
    assert plan(7, kinds, 3) == plan(7, kinds, 3)
    assert len(set(plan(7, kinds, 3))) == 3
    assert {kind for seed in range(50) for kind in plan(seed, kinds, 3)} == set(kinds)
    assert sorted(plan(1, kinds, 99)) == sorted(kinds)


def test_a_whole_round_breaks_nothing() -> None:
    assert whole().broken() == []
    assert whole().regenerated == 1


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"missing": 2}, "G1: 2 prompts lost"),
        ({"corrupt": 1}, "G1: 1 prompts lost"),
        ({"doubled": 3}, "G2: 3 rows doubled or miscounted"),
        ({"orphan": 1}, "G2: 1 rows doubled or miscounted"),
        ({"completed": 98}, "G2: 1 rows doubled or miscounted"),
        ({"pending": 4}, "G2: 4 rows doubled or miscounted"),
    ],
)
def test_what_audit_or_the_counters_say_is_told(changes: dict[str, int], told: str) -> None:
    one = whole()
    one.proofs = [proof(**changes)]
    assert one.broken() == [told]


def test_repeating_more_than_was_in_flight_is_told() -> None:
    one = whole()
    one.begun = Counter({"a": 22})
    assert one.broken() == ["G3: 21 prompts generated again, at most 20 were in flight"]


def test_being_back_late_or_never_is_told_and_what_was_left_out_is_not() -> None:
    one = whole()
    one.faults = [
        Fault("redis-killed", 1.0, back_s=BACK_WITHIN_S + 0.1),
        Fault("store-cut", 2.0),
        Fault("network-cut", 3.0, left_out="no proxy"),
    ]
    one.begun.clear()
    assert one.broken() == [
        "G4: redis-killed : back after 20.1 s, wanted within 20 s",
        "G4: store-cut : not back, wanted within 20 s",
    ]


def test_the_summary_names_the_worst_of_each_kind_and_the_rounds_that_broke() -> None:
    late = whole()
    late.seed = 2
    late.faults = [Fault("worker-killed", 1.0, back_s=25.0)]
    told = summary([whole(), late])
    assert told["back_s"] == {"worker-killed": {"count": 2, "median": 25.0, "worst": 25.0}}
    assert (told["broken_rounds"], told["prompts"], told["lost"]) == ([2], 200, 0)
