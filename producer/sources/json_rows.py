"""One line as a JSON object: everything that can be wrong with it before its meaning is asked."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from producer.sources.rejects import RejectedRow

JsonObject = dict[str, Any]

MAX_DEPTH = 200
"""Deeper nesting is a mistake or an attack, and some reader further on, whose stack is fuller than ours, would fail on it."""

_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_object(body: bytes) -> JsonObject:
    """The object in a line.

    Raises:
        RejectedRow: Not UTF-8, not JSON, not an object, or with characters that no prompt may have.
    """
    try:
        body.decode()
    except UnicodeDecodeError as error:
        surrogate = b"\xed" in body and _is_surrogate(body, error.start)
        reason = "lone_surrogate" if surrogate else "invalid_utf8"
        raise RejectedRow(reason, f"at byte {error.start}") from error
    if b"\0" in body:
        raise RejectedRow("nul", f"at byte {body.index(0)}")
    try:
        found = msgspec.json.decode(body)
    except RecursionError as error:
        raise RejectedRow("broken_json", f"nested too deep, more than {MAX_DEPTH} levels") from error
    except msgspec.DecodeError as error:
        raise RejectedRow(*_diagnosis(body, error)) from error
    if not isinstance(found, dict):
        raise RejectedRow("not_an_object", f"it is a {type(found).__name__}")
    if _nested_too_deep(found, body):
        raise RejectedRow("broken_json", f"nested too deep, more than {MAX_DEPTH} levels")
    if b"\\u0000" in body and any("\0" in text for text in _texts(found)):
        raise RejectedRow("nul", "as \\u0000")
    return found


def raw_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """The same object with its values as they stand in the line, byte for byte."""
    return _RAW.decode(body)


def _is_surrogate(body: bytes, start: int) -> bool:
    return body[start] == 0xED and start + 1 < len(body) and 0xA0 <= body[start + 1] <= 0xBF


def _diagnosis(body: bytes, error: Exception) -> tuple[str, str]:
    try:
        lenient = json.loads(body.decode())  # of bytes it would pass over a byte order mark
    except (ValueError, RecursionError):
        return "broken_json", str(error)
    for text in _texts(lenient):
        if any("\ud800" <= char <= "\udfff" for char in text):
            return "lone_surrogate", "an escape \\ud800 … \\udfff without its other half"
    return "broken_json", "a number that JSON does not have (NaN, Infinity or out of range)"


def _nested_too_deep(found: JsonObject, body: bytes) -> bool:
    # The cheap questions first: nearly every row is flat, or has fewer brackets than levels are allowed.
    for value in found.values():
        if type(value) is dict or type(value) is list:
            break
    else:
        return False
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    level: list[Any] = [found]
    for _ in range(MAX_DEPTH):
        children = (child for item in level for child in (item.values() if isinstance(item, dict) else item))
        level = [child for child in children if isinstance(child, dict | list)]
    return bool(level)


def _texts(value: object) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
