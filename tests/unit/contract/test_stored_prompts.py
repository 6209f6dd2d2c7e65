"""What is written into an input shard comes back, byte for byte."""

import msgspec
import pytest

from workers.contract.errors import ShardCorrupt
from workers.contract.schema import Prompt, decode_prompts, encode_shard

MESSAGES = b'[ {"role": "user", "content": "caf\\u00e9"} ]'


def test_messages_and_tools_come_back_byte_for_byte() -> None:
    asked = Prompt(id=1, row=0, messages=msgspec.Raw(MESSAGES), tools=msgspec.Raw(b"[1.50]"))
    (told,) = decode_prompts("k", encode_shard([asked]))
    assert told.messages is not None
    assert told.tools is not None
    assert (bytes(told.messages), bytes(told.tools)) == (MESSAGES, b"[1.50]")
    assert (told.id, told.row, told.text, told.input_ids) == (1, 0, None, None)


@pytest.mark.parametrize("asked", [Prompt(id="a", row=3, text="t"), Prompt(id="b", row=4, sample=2, input_ids=(1, 2))])
def test_prompts_without_messages_have_none(asked: Prompt) -> None:
    assert decode_prompts("k", encode_shard([asked])) == [asked]


def test_what_is_no_prompt_is_a_corrupt_shard() -> None:
    with pytest.raises(ShardCorrupt, match="expected JSON lines in zstd"):
        decode_prompts("k", b"nothing")


def test_half_a_shard_is_corrupt_wherever_it_was_cut() -> None:
    body = encode_shard([Prompt(id=str(row), row=row, text=f"text {row}") for row in range(100)])
    for length in range(len(body)):
        with pytest.raises(ShardCorrupt):
            decode_prompts("k", body[:length])
    with pytest.raises(ShardCorrupt):
        decode_prompts("k", body + b"more")
