"""Where things lie in the store: pure functions from names to keys. User text (ids, prompts) never becomes part of a key."""

import re

RUNS_PREFIX = "runs/"
_BATCH = re.compile(r"(?:r(?P<repair>[0-9]{2})-)?(?P<number>[0-9]{8})")


def batch_label(number: int, repair: int = 0) -> str:
    """`00000012`, or `r01-00000012` in the first repair of failed prompts."""
    return f"{number:08d}" if repair == 0 else f"r{repair:02d}-{number:08d}"


def parse_batch_label(label: str) -> tuple[int, int] | None:
    """Number and repair of a label, or None if it is not one."""
    match = _BATCH.fullmatch(label)
    return (int(match["number"]), int(match["repair"] or 0)) if match else None


def run_prefix(run: str) -> str:
    """Everything of one run."""
    return f"{RUNS_PREFIX}{run}/"


def manifest(run: str) -> str:
    """The immutable description of a run."""
    return f"{run_prefix(run)}manifest.json"


def inputs_prefix(run: str) -> str:
    """All input shards of a run."""
    return f"{run_prefix(run)}inputs/"


def completions_prefix(run: str) -> str:
    """All output shards of a run."""
    return f"{run_prefix(run)}completions/"


def input_shard(run: str, batch: str) -> str:
    """Prompts of one batch, JSON lines in zstd."""
    return f"{inputs_prefix(run)}{batch}.jsonl.zst"


def completions_shard(run: str, batch: str) -> str:
    """Outcomes of one batch, JSON lines in zstd, written once."""
    return f"{completions_prefix(run)}{batch}.jsonl.zst"


def batch_of_key(key: str) -> str | None:
    """The batch that a shard's key names, or None if the key is not that of a shard."""
    name = key.rsplit("/", 1)[-1].removesuffix(".jsonl.zst")
    return name if key.endswith(".jsonl.zst") and _BATCH.fullmatch(name) else None


def rejected(run: str) -> str:
    """Rows that were not accepted, JSON lines in zstd."""
    return f"{run_prefix(run)}rejected.jsonl.zst"


def progress(run: str) -> str:
    """Published by the aggregator."""
    return f"{run_prefix(run)}progress.json"
