"""What every output format is: a prompt and its outcome in, one JSON line out."""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from workers.contract.schema import Completion, Manifest, Prompt

ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True)
class Place:
    """Where a row stands: its run, and its batch's label."""

    manifest: Manifest
    batch: str


class Format(Protocol):
    """One output format."""

    def __call__(self, place: Place, prompt: Prompt, completion: Completion, *, with_input: bool) -> bytes:
        """The row as JSON, without the end of the line."""
