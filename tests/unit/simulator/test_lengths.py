import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.simulator.lengths import WORDS, LengthModel, digest_of, prompt_digest, prompt_tokens, words_until

DIGESTS = [digest_of(str(place).encode()) for place in range(4000)]


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0])
def test_the_mean_length_is_what_was_asked_for(sigma: float) -> None:
    model = LengthModel(mean_tokens=200, sigma=sigma, cap=1 << 30, seed=3)
    assert statistics.fmean(map(model.tokens, DIGESTS)) == pytest.approx(200, rel=0.05)


def test_the_spread_is_of_the_logarithm() -> None:
    few, many = (LengthModel(200, sigma, 1 << 30, seed=3) for sigma in (0.1, 1.0))
    assert statistics.pstdev(map(few.tokens, DIGESTS)) < 25
    assert statistics.median(map(many.tokens, DIGESTS)) == pytest.approx(200 / 2.718281828**0.5, rel=0.07)


def test_without_spread_all_have_the_mean() -> None:
    assert {LengthModel(15, 0.0, 4096, 0).tokens(digest) for digest in DIGESTS[:100]} == {15}


def test_no_answer_is_longer_than_the_cap_or_empty() -> None:
    lengths = [LengthModel(200, 2.0, 300, 0).tokens(digest) for digest in DIGESTS]
    assert max(lengths) == 300
    assert lengths.count(300) > 100
    assert min(LengthModel(0.1, 1.0, 300, 0).tokens(digest) for digest in DIGESTS[:200]) == 1


def test_lengths_and_words_are_the_same_on_every_run_and_machine() -> None:
    model = LengthModel(200, 1.0, 4096, seed=7)
    assert [model.tokens(digest) for digest in DIGESTS[:5]] == [152, 28, 38, 116, 116]
    assert model.words(DIGESTS[0], 3) == [" doubled", " because", " every"]


def test_another_seed_gives_other_lengths() -> None:
    one, other = (LengthModel(200, 1.0, 4096, seed) for seed in (1, 2))
    assert [one.tokens(digest) for digest in DIGESTS[:20]] != [other.tokens(digest) for digest in DIGESTS[:20]]


def test_a_longer_answer_begins_like_a_shorter_one() -> None:
    model = LengthModel(200, 1.0, 4096, 0)
    assert model.words(DIGESTS[0], 100)[:30] == model.words(DIGESTS[0], 30)
    assert {word.strip() for word in model.words(DIGESTS[0], 100)} == set(WORDS)
    assert model.words(DIGESTS[0], 0) == []


def test_only_the_prompt_counts_for_the_digest() -> None:
    assert (
        prompt_digest({"text": "Hi", "rid": "1"})
        == prompt_digest({"text": "Hi", "rid": "2"})
        == prompt_digest({"prompt": "Hi"})
    )
    assert prompt_digest({"text": "Hi"}) == digest_of(b"Hi") != prompt_digest({"text": "Ho"})
    one = prompt_digest({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3})
    assert one == prompt_digest({"messages": [{"content": "Hi", "role": "user"}]})
    assert prompt_digest({"input_ids": [1, 2]}) != prompt_digest({"input_ids": [2, 1]})


def test_prompt_tokens_are_about_a_quarter_of_the_characters() -> None:
    assert prompt_tokens({"input_ids": [5, 6, 7]}) == 3
    assert prompt_tokens({"text": "x" * 400}) == 100
    assert prompt_tokens({"text": ""}) == 1
    assert 100 < prompt_tokens({"messages": [{"role": "user", "content": "x" * 400}]}) < 120


@pytest.mark.parametrize(
    ("stops", "wanted"),
    [
        (["c"], (2, "c")),
        (["b c"], (2, "b c")),  # over the border of two tokens
        ([" d", "c"], (2, "c")),  # the one that is complete first
        (["x"], None),
        ([""], None),
        ([], None),
    ],
)
def test_a_stop_string_ends_with_the_token_that_completes_it(stops: list[str], wanted: tuple[int, str] | None) -> None:
    assert words_until([" ab", " cd", " de"], stops) == wanted


@given(st.lists(st.text("ab ", min_size=1, max_size=4), min_size=1, max_size=12), st.text("ab ", min_size=1, max_size=3))
def test_the_stop_string_is_whole_after_these_tokens_and_not_before(words: list[str], stop: str) -> None:
    found = words_until(words, [stop])
    if found is None:
        assert stop not in "".join(words)
    else:
        assert stop in "".join(words[: found[0]])
        assert stop not in "".join(words[: found[0] - 1])
