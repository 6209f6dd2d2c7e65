"""Where things lie in the store: pure functions from names to keys. User text (ids, prompts) never becomes part of a key."""

import re

from workers.contract.names import parse_repair, repair_name

RUNS_PREFIX = "runs/"
_BATCH = re.compile(r"[0-9]{8}")
_REPAIR_FOLDER = re.compile(r"r([0-9]{2})")


def batch_label(number: int) -> str:
    """`00000012`."""
    return f"{number:08d}"


def parse_batch_label(label: str) -> int | None:
    """Number of a label, or None if it is not one."""
    return int(label) if _BATCH.fullmatch(label) else None


def run_prefix(run: str) -> str:
    """Everything of one run; a repair lies within the run that it repairs."""
    base, repair = parse_repair(run)
    return f"{RUNS_PREFIX}{base}/" if repair is None else f"{repairs_prefix(base)}r{repair:02d}/"


def repairs_prefix(run: str) -> str:
    """All repairs of a run."""
    return f"{RUNS_PREFIX}{run}/repairs/"


def repair_of_prefix(run: str, prefix: str) -> str | None:
    """The repair that a folder below `repairs_prefix` holds, or None if it is not one."""
    match = _REPAIR_FOLDER.fullmatch(prefix.removeprefix(repairs_prefix(run)).rstrip("/"))
    return repair_name(run, int(match[1])) if match else None


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
