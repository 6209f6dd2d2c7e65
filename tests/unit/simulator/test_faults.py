from pathlib import Path

import msgspec
import pytest

from ops.simulator.faults import OF_THE_SERVER, FaultPlan, Rule, load_faults
from ops.simulator.lengths import digest_of

DIGESTS = [digest_of(str(place).encode()) for place in range(3000)]


def met(rule: Rule, *, tries: int = 0, seed: int = 0) -> list[bool]:
    plan = FaultPlan([rule])
    return [plan.choose("", digest, tries, 0.0, seed) is not None for digest in DIGESTS]


def chosen(rule: Rule, text: str = "", *, at_s: float = 0.0, digest: str = "d") -> bool:
    return FaultPlan([rule]).choose(text, digest, 0, at_s, 0) is rule


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_a_share_meets_about_so_many(share: float) -> None:
    assert sum(met(Rule(kind="status", share=share))) == pytest.approx(3000 * share, rel=0.2)


def test_a_share_of_none_and_of_all() -> None:
    assert not any(met(Rule(kind="status", share=0.0)))
    assert all(met(Rule(kind="status")))


def test_a_share_meets_the_same_on_every_run_and_others_with_another_seed() -> None:
    first = met(Rule(kind="status", share=0.3))
    assert first == met(Rule(kind="status", share=0.3))
    assert [place for place in range(12) if first[place]] == [2, 8, 9]
    assert first != met(Rule(kind="status", share=0.3), seed=1)


def test_a_prompt_that_was_met_once_is_drawn_anew_when_it_is_tried_again() -> None:
    first, second = (met(Rule(kind="status", share=0.3), tries=tries) for tries in (0, 1))
    both = sum(one and other for one, other in zip(first, second, strict=True))
    assert both == pytest.approx(3000 * 0.09, rel=0.25)


def test_two_rules_are_drawn_apart() -> None:
    plan = FaultPlan([Rule(kind="empty", share=0.5), Rule(kind="nan", share=0.5)])
    found = [plan.choose("", digest, 0, 0.0, 0) for digest in DIGESTS]
    kinds = [rule.kind if rule else None for rule in found]
    assert kinds.count("empty") == pytest.approx(1500, rel=0.1)
    assert kinds.count("nan") == pytest.approx(750, rel=0.15)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("prompt 1", True),
        ("a prompt 1, please", True),
        ("prompt 11", False),
        ("prompt 12 and prompt 1", True),
        ("prompt 1x", True),
        ("prompt 2", False),
        ("", False),
    ],
)
def test_a_match_that_ends_with_a_digit_must_not_be_followed_by_one(text: str, wanted: bool) -> None:
    assert chosen(Rule(kind="empty", match="prompt 1"), text) is wanted


def test_a_match_that_ends_with_a_letter_may_be_followed_by_anything() -> None:
    assert chosen(Rule(kind="empty", match="prompt"), "prompts 11")


def test_a_digest_meets_one_prompt() -> None:
    assert [digest for digest in DIGESTS if chosen(Rule(kind="empty", digest=DIGESTS[5]), digest=digest)] == [DIGESTS[5]]


def test_a_count_ends_a_rule_and_leaves_the_rest_to_the_next() -> None:
    plan = FaultPlan([Rule(kind="status", count=2), Rule(kind="empty")])
    kinds = [rule.kind for digest in DIGESTS[:4] if (rule := plan.choose("", digest, 0, 0.0, 0))]
    assert kinds == ["status", "status", "empty", "empty"]
    assert [rule.met for rule in plan.fault] == [2, 2]


def test_what_does_not_meet_does_not_count() -> None:
    plan = FaultPlan([Rule(kind="status", match="x", count=1)])
    assert plan.choose("no", "d", 0, 0.0, 0) is None
    assert plan.fault[0].met == 0
    assert plan.choose("x", "d", 0, 0.0, 0) is plan.fault[0]


def test_a_window_begins_and_ends() -> None:
    rule = Rule(kind="status", after_s=5.0, for_s=2.0)
    assert [chosen(rule, at_s=at_s) for at_s in (0.0, 4.99, 5.0, 6.99, 7.0)] == [False, False, True, True, False]
    assert chosen(Rule(kind="status", after_s=5.0), at_s=1e9)


@pytest.mark.parametrize("kind", sorted(OF_THE_SERVER))
def test_a_fault_of_the_server_meets_no_single_request(kind: str) -> None:
    rule = msgspec.convert({"kind": kind, "for_s": 3.0}, Rule)
    assert not chosen(rule)
    plan = FaultPlan([rule])
    assert plan.of_the_server(rule.kind, 2.9) is rule
    assert plan.of_the_server(rule.kind, 3.0) is None


def test_rules_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_text('[[fault]]\nkind = "status"\ncode = 429\nretry_after = 1.5\n[[fault]]\nkind = "slow"\nfactor = 0.5\n')
    assert load_faults(path) == FaultPlan([Rule(kind="status", code=429, retry_after=1.5), Rule(kind="slow", factor=0.5)])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[[fault]]\nkind = "sad"', "Invalid enum value 'sad'"),
        ('[[fault]]\nkind = "nan"\noften = true', "unknown field `often`"),
        ("[[fault]]\nshare = 0.5", "missing required field `kind`"),
        ("[[fault", "Expected"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=told) as caught:
        load_faults(path)
    assert str(caught.value).startswith(f"{path}: ")
