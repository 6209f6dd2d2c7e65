"""What crosses process borders, as types: sampling, prompt, batch message, completion, manifest. Encoding, no I/O.

Version 1. A change is additive for one release: new readers accept old encodings (`tests/golden/contract`), old readers
ignore fields that they do not know.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import msgspec
import zstandard

from workers.contract.errors import ContractMismatch, ShardCorrupt
from workers.contract.layout import batch_label

SCHEMA = 1

T = TypeVar("T")

PromptId = str | int
Status = Literal["ok", "failed"]

REASONS = (
    "rejected_by_engine",
    "timeout",
    "engine_lost",
    "aborted",
    "nan",
    "out_of_memory",
    "empty",
    "truncated_thinking",
    "truncated",
    "unclosed_thinking",
    "marker_leak",
    "repetition",
    "invalid_response",
    "cancelled",
)
"""Why a prompt failed: a closed list (DESIGN §7), each with its remedy in the README."""


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How to generate. None means: not sent, the engine's default holds. `max_tokens` is always sent."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: tuple[str, ...] | None = None
    seed: int | None = None
    thinking: bool | None = None

    def overridden_by(self, other: "Sampling") -> "Sampling":
        """This, with every field that `other` sets taken from there."""
        changes = {name: value for name in self.__struct_fields__ if (value := getattr(other, name)) is not None}
        return msgspec.structs.replace(self, **changes)


class Prompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input. Exactly one of `messages`, `text`, `input_ids` is set; messages and tools are kept byte for byte.

    `row` is the 0-based position in the source; `sample` counts from 0 when a row is generated several times.
    """

    id: PromptId
    row: int
    sample: int = 0
    messages: msgspec.Raw | None = None
    text: str | None = None
    input_ids: tuple[int, ...] | None = None
    tools: msgspec.Raw | None = None
    sampling: Sampling | None = None


class _StoredPrompt(Prompt, frozen=True, omit_defaults=True, kw_only=True):
    """A prompt as it is decoded: msgspec keeps bytes for `Raw`, but takes `Raw | None` for null only."""

    messages: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()

    def as_prompt(self) -> Prompt:
        values = {name: getattr(self, name) for name in Prompt.__struct_fields__}
        return Prompt(**{**values, "messages": _given(self.messages), "tools": _given(self.tools)})


def _given(raw: msgspec.Raw) -> msgspec.Raw | None:
    return None if bytes(raw) in {b"", b"null"} else raw


class BatchMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """The claim check: what a broker message says.

    `digest` are the first 16 hex digits of the input shard's SHA-256; `made` is the manifest's `created_at`, which tells a run
    from an earlier one of the same name.
    """

    run: str
    batch: str
    digest: str
    made: float = 0.0
    schema: int = SCHEMA


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens as the engine counted them; None where it did not say."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Generated text. `content` is the answer only, `reasoning_content` the thinking without its tags."""

    content: str | None = None
    reasoning_content: str | None = None
    output_ids: tuple[int, ...] | None = None
    tool_calls: tuple[dict[str, Any], ...] | None = None


class Provenance(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a row comes from: engine version and model, worker, attempt of the batch, tries of the prompt, times."""

    worker: str
    engine_version: str | None = None
    model: str | None = None
    attempt: int = 1
    tries: int = 1
    request_id: str | None = None
    started_at: float | None = None
    latency_s: float | None = None
    spec_verify_ct: int | None = None
    retractions: int | None = None


class Completion(msgspec.Struct, frozen=True, omit_defaults=True):
    """One outcome: an answer, or a failure with a reason. `index` is the prompt's position in its batch.

    Text that was judged bad stands in `rejected`, never in `answer`: no bad row passes as good, and a wrong gate can be undone.
    """

    index: int
    id: PromptId
    row: int
    status: Status
    provenance: Provenance
    sample: int = 0
    reason: str | None = None
    message: str | None = None
    answer: Answer | None = None
    rejected: Answer | None = None
    finish_reason: str | None = None
    matched_stop: str | int | None = None
    usage: Usage = Usage()
    flags: tuple[str, ...] = ()


class Repair(msgspec.Struct, frozen=True, omit_defaults=True):
    """What makes a run the repair of another: outcomes of that one are replaced by its own.

    `of_made` is the other manifest's `created_at`. `ok`, `reasons` and `flags` count the outcomes that are replaced; `chosen`
    says in words which they are, and `overrides` what is generated otherwise.
    """

    of: str
    of_made: float
    ok: int = 0
    reasons: dict[str, int] = {}
    flags: dict[str, int] = {}
    chosen: str = ""
    overrides: Sampling = Sampling()

    @property
    def failed(self) -> int:
        """Failed outcomes that are replaced."""
        return sum(self.reasons.values())


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The immutable description of a run.

    `accepted` and `rejected` count source rows; `prompts` = accepted × samples (in a repair, `accepted` counts prompts, too).
    `shard_digests` holds 16 hex digits a batch, in order, without separator. `source_sha256` is over the lines of all sources
    in order, without blank ones, and without the spaces around them.
    """

    run: str
    created_at: float
    sources: tuple[str, ...]
    source_sha256: str
    source_bytes: int
    accepted: int
    rejected: int
    reject_reasons: dict[str, int]
    prompts: int
    batches: int
    batch_size: int
    samples: int
    sampling: Sampling
    shard_digests: str
    limit: int | None = None
    model: str | None = None
    priority: int = 4
    producer_version: str = ""
    repair: Repair | None = None
    schema: int = SCHEMA

    def digest_of(self, number: int) -> str:
        """Digest of the input shard of batch `number` (0-based)."""
        return self.shard_digests[16 * number : 16 * number + 16]

    def message_of(self, number: int) -> BatchMessage:
        """The claim check of batch `number` (0-based)."""
        return BatchMessage(self.run, batch_label(number), self.digest_of(number), self.created_at)

    def prompts_in(self, number: int) -> int:
        """Prompts of batch `number` (0-based)."""
        return min(self.batch_size, self.prompts - number * self.batch_size)


SIZE, DIGEST = "fleet-size", "fleet-digest"
"""Metadata of a completions shard: its bytes, and the first 16 hex digits of their SHA-256. Older shards have none."""


def check_size(key: str, size_bytes: int, metadata: Mapping[str, str]) -> None:
    """Hold the size of a stored shard against what its worker wrote.

    Raises:
        ShardCorrupt: It differs.
    """
    expected = metadata.get(SIZE)
    if expected is not None and expected != str(size_bytes):
        raise ShardCorrupt(key, f"{size_bytes} bytes", f"the {expected} bytes that its worker wrote")


def check_digest(key: str, body: bytes, metadata: Mapping[str, str]) -> None:
    """Hold the bytes of a stored shard against what its worker wrote.

    Raises:
        ShardCorrupt: They differ.
    """
    check_size(key, len(body), metadata)
    expected, found = metadata.get(DIGEST), shard_digest(body)
    if expected not in {None, found}:
        raise ShardCorrupt(key, f"digest {found}", f"digest {expected}")


class ShardCounts(msgspec.Struct, frozen=True):
    """What a completions shard holds; travels as object metadata, so that counters are rebuilt without reading bodies."""

    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasons: dict[str, int] = {}
    flags: dict[str, int] = {}

    @classmethod
    def of(cls, completions: Iterable[Completion]) -> "ShardCounts":
        """Count the rows of one shard."""
        totals = dict.fromkeys(("completed", "failed", "prompt_tokens", "completion_tokens"), 0)
        reasons: dict[str, int] = {}
        flags: dict[str, int] = {}
        for completion in completions:
            totals["completed" if completion.status == "ok" else "failed"] += 1
            totals["prompt_tokens"] += completion.usage.prompt_tokens
            totals["completion_tokens"] += completion.usage.completion_tokens
            if completion.reason is not None:
                reasons[completion.reason] = reasons.get(completion.reason, 0) + 1
            for flag in completion.flags:
                flags[flag] = flags.get(flag, 0) + 1
        return cls(**totals, reasons=reasons, flags=flags)

    def to_metadata(self, body: bytes) -> dict[str, str]:
        """As metadata of the object, with its size and digest: what was changed or cut later is found."""
        counts = msgspec.json.encode(self).decode()
        return {"fleet-counts": counts, SIZE: str(len(body)), DIGEST: shard_digest(body)}

    @classmethod
    def from_metadata(cls, key: str, metadata: dict[str, str]) -> "ShardCounts":
        """Read it back.

        Raises:
            ShardCorrupt: The object carries no counts, or they cannot be read.
        """
        value = metadata.get("fleet-counts")
        if value is None:
            raise ShardCorrupt(key, "no fleet-counts in its metadata", "the counts that its worker wrote")
        try:
            return msgspec.json.decode(value, type=cls)
        except msgspec.DecodeError as error:
            raise ShardCorrupt(key, f"unreadable fleet-counts ({error})", "the counts that its worker wrote") from error


MAX_SHARD_BYTES = 1 << 30
"""A shard that unpacks to more is a bomb or a mistake: 64 prompts of the largest accepted size stay far below."""

_ENCODER = msgspec.json.Encoder()
_PROMPTS = msgspec.json.Decoder(_StoredPrompt)
_COMPLETIONS = msgspec.json.Decoder(Completion)
_MANIFEST = msgspec.json.Decoder(Manifest)


def shard_digest(body: bytes) -> str:
    """First 16 hex digits of the SHA-256 of a shard as stored."""
    return hashlib.sha256(body).hexdigest()[:16]


def encode_shard(rows: Iterable[Prompt | Completion]) -> bytes:
    """Rows as JSON lines in one zstd frame; the same rows always give the same bytes under the same zstd version."""
    return zstandard.ZstdCompressor(level=3).compress(_ENCODER.encode_lines(list(rows)))


def decode_prompts(key: str, body: bytes) -> list[Prompt]:
    """Prompts of an input shard, in order.

    Raises:
        ShardCorrupt: Not zstd, not JSON, or not prompts.
    """
    return [stored.as_prompt() for stored in _decode_lines(key, body, _PROMPTS)]


def decode_completions(key: str, body: bytes) -> list[Completion]:
    """Completions of an output shard, in order.

    Raises:
        ShardCorrupt: Not zstd, not JSON, or not completions.
    """
    return list(_decode_lines(key, body, _COMPLETIONS))


def _decode_lines(key: str, body: bytes, decoder: "msgspec.json.Decoder[T]") -> Iterator[T]:
    try:
        if zstandard.frame_content_size(body) > MAX_SHARD_BYTES:
            raise ShardCorrupt(key, f"more than {MAX_SHARD_BYTES} bytes unpacked", "a shard")
        # Not a stream reader: that one takes half a frame for a short one.
        text = zstandard.ZstdDecompressor().decompress(body, max_output_size=MAX_SHARD_BYTES, allow_extra_data=False)
        yield from decoder.decode_lines(text)
    except (zstandard.ZstdError, msgspec.MsgspecError, RecursionError) as error:
        raise ShardCorrupt(key, str(error), "JSON lines in zstd") from error


def encode_manifest(manifest: Manifest) -> bytes:
    """As stored: JSON, indented for people."""
    return msgspec.json.format(_ENCODER.encode(manifest), indent=1) + b"\n"


def decode_manifest(key: str, body: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        ShardCorrupt: Not a manifest.
        ContractMismatch: A later schema.
    """
    try:
        manifest = _MANIFEST.decode(body)
    except msgspec.MsgspecError as error:
        raise ShardCorrupt(key, str(error), "a manifest") from error
    if manifest.schema > SCHEMA:
        raise ContractMismatch(key, manifest.schema, SCHEMA)
    return manifest


def decode_message(fields: dict[str, object]) -> BatchMessage:
    """The claim check of a broker message.

    Raises:
        ContractMismatch: Fields are missing or of another type, or a later schema.
    """
    try:
        message = msgspec.convert(fields, BatchMessage)
    except msgspec.ValidationError as error:
        raise ContractMismatch("batch message", str(error), SCHEMA) from error
    if message.schema > SCHEMA:
        raise ContractMismatch("batch message", message.schema, SCHEMA)
    return message
