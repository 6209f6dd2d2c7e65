import msgspec
import pytest

from workers.answers import Generated
from workers.contract.schema import Answer, Prompt, Usage
from workers.quality import NAN_MARK, Verdict, judge

CHAT = Prompt(id="a", row=0, messages=msgspec.Raw(b'[{"role":"user","content":"hi"}]'))
TEXT = Prompt(id="b", row=1, text="hi")


def generated(
    content: str | None,
    *,
    reasoning: str | None = None,
    finish: str = "stop",
    matched: str | int | None = 2,
    message: str | None = None,
) -> Generated:
    return Generated(Answer(content, reasoning), finish, matched, Usage(5, 7), message)


@pytest.mark.parametrize(
    ("prompt", "answer", "verdict"),
    [
        (CHAT, generated("Paris."), Verdict()),
        (TEXT, generated("Paris."), Verdict()),
        (CHAT, generated("Paris.", reasoning="thinking"), Verdict()),
        (CHAT, generated("cut off", finish="length"), Verdict(flags=("truncated",))),
        (TEXT, generated("part", finish="abort", message="Aborted"), Verdict("aborted", "Aborted")),
        (TEXT, generated("", finish="abort"), Verdict("aborted", "the engine aborted the request")),
        (TEXT, generated("x", matched=NAN_MARK), Verdict("nan", "the engine sampled from NaN logits")),
        (CHAT, generated(None, matched=NAN_MARK), Verdict("nan", "the engine sampled from NaN logits")),
        (CHAT, generated(None), Verdict("empty", "nothing visible in 7 tokens")),
        (TEXT, generated(" \n\t"), Verdict("empty", "nothing visible in 7 tokens")),
        (CHAT, generated("\n\n", reasoning="I think"), Verdict("empty", "only thinking in 7 tokens")),
        (
            CHAT,
            generated(None, reasoning="I think", finish="length"),
            Verdict("truncated_thinking", "the budget ended while thinking, after 7 tokens"),
        ),
        (
            CHAT,
            generated("", reasoning="I think", finish="length"),
            Verdict("truncated_thinking", "the budget ended while thinking, after 7 tokens"),
        ),
        (CHAT, generated("", finish="length"), Verdict("empty", "nothing visible in 7 tokens")),
    ],
)
def test_verdict(prompt: Prompt, answer: Generated, verdict: Verdict) -> None:
    assert judge(prompt, answer) == verdict
