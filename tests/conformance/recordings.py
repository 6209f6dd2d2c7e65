"""Recorded exchanges with the real SGLang, and the comparison of any answer with them.

A recording holds the request and the answer. An answer is alike if it has the recorded status, and every key of the recording
with the same JSON type; what was null when recorded may be anything. Of an error the sentence counts too, but for its numbers.
"""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden" / "sglang"
VERSIONS = ("0.5.11", "0.5.23")
NULLABLE = frozenset({"cached_tokens_details", "prompt_tokens_details"})
"""Null or not by what the cache held, and whether the recorded server had --enable-cache-report."""
DONE = b"[DONE]"
_LONG_IDS = {"input_ids": [10 + place % 200 for place in range(3000)]} | {
    "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
}
_LONG_CHAT = {
    "model": "tiny-qwen3",
    "messages": [{"role": "user", "content": "Hello, how are you? " * 700}],
    "temperature": 0,
    "max_tokens": 8,
    "ignore_eos": True,
}
EXCERPTS = {
    "err_prompt_too_long_generate": _LONG_IDS,
    "err_prompt_too_long_generate_stream": _LONG_IDS | {"stream": True},
    "err_prompt_too_long_chat": _LONG_CHAT,
    "err_prompt_too_long_chat_stream": _LONG_CHAT | {"stream": True},
}
"""Requests of which the recording shows the beginning only, whole."""
CONTENT_TYPES = {"err_content_type": "text/plain"}


@dataclass(frozen=True)
class Reply:
    """What a server answered."""

    status: int
    content_type: str
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def streamed(self) -> bool:
        return self.content_type.startswith("text/event-stream")

    @property
    def events(self) -> list[bytes]:
        """What follows each `data: ` of a stream."""
        return [line.removeprefix(b"data: ") for line in self.body.splitlines() if line.startswith(b"data: ")]

    @property
    def chunks(self) -> list[Any]:
        """The events that are JSON."""
        return [json.loads(event) for event in self.events if event != DONE]


@dataclass(frozen=True)
class Recording(Reply):
    """One exchange."""

    name: str
    version: str
    method: str
    path: str
    request_body: bytes

    @property
    def asked(self) -> Any:
        """The request's JSON."""
        return json.loads(self.request_body)


def load(version: str, name: str) -> Recording:
    """Read one recording."""
    text = (GOLDEN / version / f"{name}.txt").read_text(encoding="utf-8")
    head, _, rest = text.partition("\n\n")
    asked = [line[2:] for line in head.splitlines() if line.startswith("> ") and not line.startswith("> note:")]
    method, path = asked[0].split(" ", 1)
    answer_head, _, answer = rest.partition("\n\n")
    headers = dict(line.lower().split(": ", 1) for line in answer_head.splitlines()[1:])
    body = json.dumps(EXCERPTS[name]) if name in EXCERPTS else "\n".join(asked[1:])
    return Recording(
        status=int(answer_head.split()[1]),
        content_type=headers.get("content-type", ""),
        body=answer.partition("\n\n# elapsed")[0].partition("\n# elapsed")[0].strip().encode(),
        name=name,
        version=version,
        method=method,
        path=path,
        request_body=body.encode(),
    )


def names(version: str) -> list[str]:
    """All recordings of a version."""
    return sorted(path.stem for path in (GOLDEN / version).glob("*.txt"))


def send(base_url: str, recording: Recording, **instead: object) -> Reply:
    """Ask a server what was asked when it was recorded, but for some fields."""
    body = json.dumps(recording.asked | instead).encode() if instead else recording.request_body
    request = urllib.request.Request(base_url + recording.path, body or None, method=recording.method)
    if body:
        request.add_header("content-type", CONTENT_TYPES.get(recording.name, "application/json"))
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return Reply(response.status, response.headers.get("content-type", ""), response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, error.headers.get("content-type", ""), error.read())


def unlike(recorded: Reply, found: Reply) -> list[str]:
    """In what a found answer differs from a recorded one; empty if it is alike."""
    if found.status != recorded.status:
        return [f"status {found.status}, recorded {recorded.status}: {found.body[:200]!r}"]
    if found.streamed != recorded.streamed:
        return [f"{found.content_type}, recorded {recorded.content_type}"]
    if recorded.streamed:
        return _unlike_stream(recorded, found)
    try:
        wanted = recorded.json
    except ValueError:
        return [] if found.body.strip() == recorded.body else [f"{found.body[:80]!r}, recorded {recorded.body[:80]!r}"]
    try:
        return differences(wanted, found.json) or list(_unlike_errors(wanted, found.json))
    except ValueError:
        return [f"not JSON: {found.body[:80]!r}"]


def differences(recorded: Any, found: Any, where: str = "$") -> list[str]:
    """What a found value lacks, or has of another type, compared with a recorded one."""
    if recorded is None:
        return []
    if _kind(recorded) != _kind(found):
        return [f"{where}: {_kind(found)}, recorded {_kind(recorded)}"]
    if isinstance(recorded, dict):
        missing = [f"{where}.{name}: missing" for name in recorded if name not in found]
        return missing + [
            line
            for name in recorded
            if name in found and not (name in NULLABLE and found[name] is None)
            for line in differences(recorded[name], found[name], f"{where}.{name}")
        ]
    if isinstance(recorded, list) and recorded and isinstance(recorded[0], dict):
        return differences(recorded[0], found[0], f"{where}[0]") if found else [f"{where}: empty"]
    return []


def _unlike_stream(recorded: Reply, found: Reply) -> list[str]:
    """Each recorded kind of event came, and the end of the stream is the same."""
    lines = [] if found.events[-1:] == recorded.events[-1:] else [f"ends with {found.events[-1:]}"]
    for wanted in recorded.chunks:
        same_kind = [chunk for chunk in found.chunks if bool(chunk.get("choices")) == bool(wanted.get("choices"))]
        told = [differences(wanted, chunk) or list(_unlike_errors(wanted, chunk)) for chunk in same_kind]
        if all(told):
            nearest = min(told, key=len, default=["no event"])
            lines.append(f"no event like {json.dumps(wanted)[:300]}; nearest: {nearest}")
    return list(dict.fromkeys(lines))


def _unlike_errors(recorded: Any, found: Any) -> Iterable[str]:
    """In what two error bodies differ: kind, code, parameter, and the sentence but for its numbers."""
    if not isinstance(recorded, dict) or not ("error" in recorded or recorded.get("object") == "error" or "detail" in recorded):
        return
    wanted, told = (_flat_error(body) for body in (recorded, found))
    for name, value in wanted.items():
        if _sentence(told.get(name)) != _sentence(value):
            yield f"error's {name}: {told.get(name)!r}, recorded {value!r}"


def _flat_error(body: dict[str, Any]) -> dict[str, Any]:
    inner = body.get("error", body)
    return inner if isinstance(inner, dict) else {"error": inner}


def _sentence(value: object) -> object:
    """Without numbers; of what Pydantic says, its words are its own and change with its version."""
    if not isinstance(value, str):
        return value
    return re.sub(r"\d+", "#", value.splitlines()[0] if "validation error" in value else value)


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return {str: "string", dict: "object", list: "array", type(None): "null"}[type(value)]
