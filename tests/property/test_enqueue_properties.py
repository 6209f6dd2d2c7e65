"""What goes in comes out: once, in order, byte-exact; whatever the bytes, nothing crashes."""

import gzip
import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from producer.batching import batches
from producer.sources.rejects import Reject
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
