"""Recorded exchanges with the real SGLang, and the comparison of any server's answers with them.

A recording holds the request and the answer. A server conforms if the same request gets the same status and an answer with
every key of the recording, each of the same JSON type; a value that was null when recorded may be anything.
"""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden" / "sglang"
VERSIONS = ("0.5.11", "0.5.23")
NULLABLE = frozenset({"cached_tokens_details"})
"""Null or not by what the cache held when it was recorded."""


@dataclass(frozen=True)
class Recording:
    """One exchange. `request_body` is None where the recording shows an excerpt only."""

    name: str
    version: str
    method: str
    path: str
    request_body: bytes | None
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def load(version: str, name: str) -> Recording:
    """Read one recording."""
    text = (GOLDEN / version / f"{name}.txt").read_text(encoding="utf-8")
    head, _, rest = text.partition("\n\n")
    asked = [line[2:] for line in head.splitlines() if line.startswith("> ") and not line.startswith("> note:")]
    method, path = asked[0].split(" ", 1)
    body = "\n".join(asked[1:])
    answer_head, _, answer = rest.partition("\n\n")
    return Recording(
        name=name,
        version=version,
        method=method,
        path=path,
        request_body=None if body.startswith("(") else body.encode() if body else b"",
        status=int(answer_head.split()[1]),
        body=answer.partition("\n\n# elapsed")[0].partition("\n# elapsed")[0].strip().encode(),
    )


def send(base_url: str, recording: Recording) -> tuple[int, bytes]:
    """Ask a server what was asked when it was recorded."""
    request = urllib.request.Request(base_url + recording.path, method=recording.method)
    if recording.request_body:
        request.data = recording.request_body
        request.add_header("content-type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def differences(recorded: Any, found: Any, where: str = "$") -> list[str]:
    """What a found answer lacks, or has of another type, compared with a recorded one."""
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


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return {str: "string", dict: "object", list: "array", type(None): "null"}[type(value)]


REPLAYED = (
    "server_info",
    "model_info",
    "v1_models",
    "v1_models_id",
    "v1_loads",
    "generate_text",
    "generate_input_ids",
    "chat",
    "chat_separate_reasoning_true",
    "completions",
    "err_bad_temperature_generate",
    "err_bad_top_p_generate",
    "err_unknown_sampling_param_generate",
    "err_bad_temperature_chat",
    "err_bad_top_p_chat",
    "err_wrong_type_chat",
    "err_max_tokens_negative_chat",
    "err_max_tokens_zero_chat",
    "err_malformed_json_generate",
    "err_malformed_json_chat",
    "err_missing_messages_chat",
    "err_empty_messages_chat",
    "err_no_input_generate",
    "err_empty_input_ids",
    "unknown_model_chat",
    "unknown_model_completions",
    "err_unknown_model_get",
    "abort_unknown_rid",
    "max_new_tokens_too_large_generate",
    "max_tokens_too_large_chat",
    "get_load",
)
"""What is asked again of a live server. Not among them: what would need a second request at the right moment."""


def nonconformity(base_url: str, recording: Recording) -> list[str]:
    """Ask a live server, and say in what it differs from the recording."""
    status, body = send(base_url, recording)
    if status != recording.status:
        return [f"status {status}, recorded {recording.status}: {body[:200]!r}"]
    try:
        recorded = recording.json
    except ValueError:
        return [] if body.strip() == recording.body else [f"{body[:80]!r}, recorded {recording.body[:80]!r}"]
    return differences(recorded, json.loads(body))
