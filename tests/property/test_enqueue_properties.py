"""What goes in comes out: once, in order, byte-exact; whatever the bytes, nothing crashes."""

import gzip
import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from producer.batching import batches
from producer.sources import lines
from producer.sources.rejects import REJECT_REASONS, Reject
from producer.sources.stream import SourceStream
from workers.contract.errors import SourceUnreadable
from workers.contract.schema import Prompt, decode_prompts, encode_shard

characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
texts = st.text(characters, min_size=1).filter(lambda text: bool(text.strip()))
special = st.sampled_from(
    ["多语言テスト한국어", "👩‍👩‍👧‍👦🇪🇸", "שלום عالم", "e\u0301\u0323", "\u2028\u2029\u200b", '"\\/\b\f\n\r\t', "\ufffd"]
)


def stream_of(body: bytes) -> list[Prompt | Reject]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "source"
        path.write_bytes(body)
        return list(SourceStream((str(path),)))


@given(st.lists(texts | special, min_size=1, max_size=40), st.booleans(), st.booleans())
def test_texts_come_out_once_in_order_and_exact(rows: list[str], ascii_only: bool, packed: bool) -> None:
    body = "".join(json.dumps({"text": text}, ensure_ascii=ascii_only) + "\n" for text in rows).encode()
    found = stream_of(gzip.compress(body) if packed else body)
    assert [item.text for item in found if isinstance(item, Prompt)] == rows
    assert [item.row for item in found if isinstance(item, Prompt)] == list(range(len(rows)))


@given(st.lists(texts | special, min_size=1, max_size=10))
def test_messages_survive_shards_byte_for_byte(rows: list[str]) -> None:
    raw = [json.dumps([{"role": "user", "content": text}], ensure_ascii=False).encode() for text in rows]
    found = stream_of(b"".join(b'{"messages": ' + body + b"}\n" for body in raw))
    prompts = [item for item in found if isinstance(item, Prompt)]
    back = decode_prompts("k", encode_shard(prompts))
    assert [bytes(prompt.messages or b"") for prompt in back] == raw


@given(st.integers(0, 300), st.integers(1, 70), st.integers(1, 4))
def test_batching_loses_and_doubles_nothing(count: int, size: int, samples: int) -> None:
    prompts = [Prompt(id=number, row=number, text="t") for number in range(count)]
    found = list(batches(prompts, size, samples))
    assert all(len(batch) == size for batch in found[:-1])
    assert all(0 < len(batch) <= size for batch in found)
    flat = [(prompt.row, prompt.sample) for batch in found for prompt in batch]
    assert flat == [(row, sample) for row in range(count) for sample in range(samples)]


@settings(max_examples=300)
@given(st.binary(max_size=400) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_rows_rejects_or_one_refusal(body: bytes) -> None:
    try:
        found = stream_of(body)
    except SourceUnreadable:
        return
    assert found
    for item in found:
        assert isinstance(item, Prompt | Reject)


@given(st.lists(st.integers(0, 5) | st.sampled_from(["0", "1", "a"]), min_size=1, max_size=30))
def test_an_id_is_accepted_once_and_its_type_counts(ids: list[int | str]) -> None:
    found = stream_of(b"".join(json.dumps({"id": value, "text": "t"}).encode() + b"\n" for value in ids))
    accepted = [(type(item.id), item.id) for item in found if isinstance(item, Prompt)]
    assert accepted == list(dict.fromkeys((type(value), value) for value in ids))
    assert {item.reason for item in found if isinstance(item, Reject)} <= {"duplicate_id"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | special | st.just(""),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
TALK = [
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
    {"role": "tool", "content": "42"},
]
SAMPLING = {"max_tokens": 5, "temperature": 1, "top_k": 3, "stop": ["x"], "seed": 1, "n": 1, "logit_bias": {}, "model": "m"}
CHAT = {"messages": TALK, "tools": [{"type": "function"}], "chat_template_kwargs": {"enable_thinking": True}, **SAMPLING}
ROWS = [
    {"id": "a", **CHAT},
    {"id": 1, "text": "t", **SAMPLING},
    {"id": 1, "input_ids": [1, 2], **SAMPLING},
    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHAT},
    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "t", **SAMPLING}},
]


def places_in(value: object, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, inner in items for place in places_in(inner, (*here, key)))]


def with_value(row: Any, place: tuple[Any, ...], value: object) -> Any:
    if not place:
        return value
    changed = row.copy()
    changed[place[0]] = with_value(row[place[0]], place[1:], value)
    return changed


PLACES = [(row, place) for row in ROWS for place in places_in(row)]


@pytest.mark.parametrize("value", [None, True, 0, -1.5, 1 << 80, "", " ", "x", [], [[]], ["x"], [1], {}, {"x": []}])
def test_a_wrong_value_anywhere_in_a_row_is_a_reject_of_the_closed_list(value: object) -> None:
    assert_each_is_readable_or_rejected([with_value(row, place, value) for row, place in PLACES])


@given(st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=1, max_size=9))
def test_any_value_anywhere_in_a_row_is_a_prompt_or_a_reject_of_the_closed_list(changes: list[tuple[Any, object]]) -> None:
    assert_each_is_readable_or_rejected([with_value(row, place, value) for (row, place), value in changes])


def assert_each_is_readable_or_rejected(rows: list[object]) -> None:
    first = {"text": "a file that begins with [ is refused as a whole"}
    found = stream_of(b"".join(json.dumps(row).encode() + b"\n" for row in [first, *rows]))
    assert len(found) == 1 + len(rows)
    assert {item.reason for item in found if isinstance(item, Reject)} <= set(REJECT_REASONS)
    accepted = [item for item in found if isinstance(item, Prompt)]
    back = decode_prompts("k", encode_shard(accepted))
    assert encode_shard(back) == encode_shard(accepted)


def cut(body: bytes, places: list[int]) -> list[bytes]:
    bounds = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    return [body[start:end] for start, end in pairwise(bounds)]


line_bodies = st.lists(
    st.sampled_from([b"", b" ", b"a", b"bc", b"def ", b"x" * 9, b"x" * 10, b"x" * 11, b"y" * 40, b"\r"]), max_size=12
)


@settings(max_examples=300)
@given(line_bodies, st.lists(st.integers(0, 10_000), max_size=20), st.booleans())
def test_lines_do_not_depend_on_where_chunks_end(bodies: list[bytes], places: list[int], ended: bool) -> None:
    whole = b"\n".join(bodies) + b"\n" * ended
    found = list(lines._split("f", iter(cut(whole, places)), 10))
    expected = [
        lines.Line("f", number, b"" if len(body) > 10 else body.strip(), too_long=len(body) > 10)
        for number, body in enumerate(whole.split(b"\n"), 1)
        if len(body) > 10 or body.strip()
    ]
    assert found == expected


@given(st.lists(texts | special, min_size=1, max_size=30), st.integers(64, 300), st.integers(1, 50), st.integers(0, 9999))
def test_rows_do_not_depend_on_how_archives_are_read(rows: list[str], chunk: int, packed: int, place: int) -> None:
    body = "".join(json.dumps({"text": text}) + "\n" for text in rows).encode()
    halves = cut(body, [place])
    compress = zstandard.ZstdCompressor(write_content_size=False).compress
    sources = [body, b"".join(map(gzip.compress, halves)), b"".join(map(compress, halves))]
    with mock.patch.object(lines, "CHUNK_BYTES", chunk), mock.patch.object(lines, "PACKED_BYTES", packed):
        for source in sources:
            assert [item.text for item in stream_of(source) if isinstance(item, Prompt)] == rows
