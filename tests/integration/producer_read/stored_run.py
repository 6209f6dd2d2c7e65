"""A run as the producer and workers would have left it in the store, written through the contract; tests then break it."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import zstandard

from workers.contract import layout
from workers.contract.schema import (
    Answer,
    Completion,
    Manifest,
    Prompt,
    Provenance,
    Sampling,
    ShardCounts,
    Usage,
    encode_manifest,
    encode_shard,
    shard_digest,
)
from workers.object_store import ObjectStore

CREATED_AT = 1_780_000_000.0


def prompt(row: int, sample: int = 0) -> Prompt:
    """Chat prompts, and every tenth a text prompt."""
    if row % 10 == 9:
        return Prompt(id=f"p{row}", row=row, sample=sample, text=f"text {row}")
    return Prompt(
        id=f"p{row}", row=row, sample=sample, messages=msgspec.Raw(b'[{"role":"user","content":"question %d"}]' % row)
    )


def outcome(index: int, asked: Prompt) -> Completion:
    """Every seventh row fails."""
    provenance = Provenance(worker="gpu0@host", model="m", request_id=f"r{asked.row}", started_at=CREATED_AT, latency_s=2.5)
    common = {"index": index, "id": asked.id, "row": asked.row, "sample": asked.sample, "provenance": provenance}
    if asked.row % 7 == 6:
        return Completion(
            **common,  # type: ignore[arg-type]
            status="failed",
            reason="empty",
            message="no text",
            rejected=Answer(content=""),
            usage=Usage(prompt_tokens=5),
        )
    return Completion(
        **common,  # type: ignore[arg-type]
        status="ok",
        answer=Answer(content=f"answer {asked.row}", reasoning_content="because"),
        finish_reason="stop",
        usage=Usage(prompt_tokens=5, completion_tokens=7, reasoning_tokens=2),
        flags=("truncated",) if asked.row % 5 == 4 else (),
    )


@dataclass
class StoredRun:
    """A run in a store, and the means to break it."""

    store: ObjectStore
    manifest: Manifest
    prompts: list[list[Prompt]]

    @property
    def run(self) -> str:
        return self.manifest.run

    def input_key(self, number: int) -> str:
        return layout.input_shard(self.run, layout.batch_label(number))

    def output_key(self, number: int) -> str:
        return layout.completions_shard(self.run, layout.batch_label(number))

    def outcomes(self, number: int) -> list[Completion]:
        return [outcome(index, asked) for index, asked in enumerate(self.prompts[number])]

    def answer(self, number: int) -> None:
        """Write the output shard of a batch as a worker does."""
        rows = self.outcomes(number)
        body = encode_shard(rows)
        assert self.store.put_new(self.output_key(number), body, ShardCounts.of(rows).to_metadata(body))

    def rewrite(self, number: int, rows: Sequence[Completion], told: ShardCounts | None = None) -> None:
        """Replace the output shard of a batch."""
        body = encode_shard(rows)
        self.store.put(self.output_key(number), body, (told or ShardCounts.of(rows)).to_metadata(body))

    def rewrite_raw(self, number: int, body: bytes) -> None:
        """Replace the body of an output shard; the metadata stay."""
        rows = self.outcomes(number)
        self.store.put(self.output_key(number), body, ShardCounts.of(rows).to_metadata(encode_shard(rows)))


def write_run(
    store: ObjectStore, rows: int = 20, batch_size: int = 4, samples: int = 1, run: str = "r", answered: int | None = None
) -> StoredRun:
    """Write inputs, manifest, and the outcomes of the first `answered` batches (all)."""
    prompts = [prompt(row, sample) for row in range(rows) for sample in range(samples)]
    batches = [prompts[start : start + batch_size] for start in range(0, len(prompts), batch_size)]
    digests = ""
    for number, batch in enumerate(batches):
        body = encode_shard(batch)
        digests += shard_digest(body)
        store.put_new(layout.input_shard(run, layout.batch_label(number)), body)
    manifest = Manifest(
        run=run,
        created_at=CREATED_AT,
        sources=("prompts.jsonl",),
        source_sha256="0" * 64,
        source_bytes=1,
        accepted=rows,
        rejected=3,
        reject_reasons={"no_prompt": 3},
        prompts=len(prompts),
        batches=len(batches),
        batch_size=batch_size,
        samples=samples,
        sampling=Sampling(max_tokens=100),
        shard_digests=digests,
        model="m",
    )
    store.put_new(layout.manifest(run), encode_manifest(manifest))
    stored = StoredRun(store, manifest, batches)
    for number in range(len(batches) if answered is None else answered):
        stored.answer(number)
    return stored


def unpacked(body: bytes) -> bytes:
    """A zst file of any number of frames."""
    return zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True).read()
