"""Conversations: what a list of messages must look like before the engine sees it. Source: OpenAI's chat format."""

from typing import Any

from producer.sources.rejects import RejectedRow

_ROLES = frozenset({"user", "system", "assistant", "tool", "function", "developer", "latest_reminder", "root"})
"""What SGLang 0.5.11 or 0.5.23 takes; any other is refused with 400. Source: entrypoints/openai/protocol.py."""
_UNSUPPORTED_PARTS = frozenset({"image_url", "image", "input_image", "audio", "input_audio", "audio_url", "video_url", "file"})


def check_messages(value: object) -> None:
    """Accept a conversation that can be answered.

    Raises:
        RejectedRow: It cannot; says which message and why.
    """
    if not isinstance(value, list):
        raise RejectedRow("wrong_type", f"messages is a {type(value).__name__}, expected a list")
    if not value:
        raise RejectedRow("empty_prompt", "messages is empty")
    said = False
    for place, message in enumerate(value):
        said |= _check_message(place, message)
    if not said:
        raise RejectedRow("empty_prompt", "no message has any content")
    if value[-1]["role"] == "assistant" and not value[-1].get("tool_calls"):
        raise RejectedRow("bad_message", "the last message is the assistant's: there is nothing to answer")


def _check_message(place: int, message: object) -> bool:
    where = f"message {place}"
    if not isinstance(message, dict):
        raise RejectedRow("bad_message", f"{where} is a {type(message).__name__}, expected an object")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RejectedRow("bad_message", f"{where} has no role")
    if role.lower() not in _ROLES:
        raise RejectedRow(
            "bad_message", f"{where} has the role {role[:40]!r}, expected user, assistant, system, developer or tool"
        )
    content = message.get("content")
    if content is None:
        if message.get("tool_calls"):
            return True
        raise RejectedRow("bad_message", f"{where} ({role}) has no content")
    if isinstance(content, str):
        return bool(content.strip())
    if isinstance(content, list):
        return _check_parts(where, content)
    raise RejectedRow("bad_message", f"{where} ({role}) has content of type {type(content).__name__}")


def _check_parts(where: str, parts: list[Any]) -> bool:
    said = False
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind in _UNSUPPORTED_PARTS:
            raise RejectedRow("unsupported_part", f"{where} has a part of type {kind}")
        if kind != "text" or not isinstance(part.get("text"), str):
            raise RejectedRow("bad_message", f"{where} has a part that is no text")
        said |= bool(part["text"].strip())
    return said
