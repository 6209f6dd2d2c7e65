"""What a row asks for, whatever its shape."""

import hashlib
from dataclasses import dataclass

import msgspec

from workers.contract.schema import Sampling


@dataclass(frozen=True)
class Content:
    """Exactly one of `messages`, `text`, `input_ids` is set."""

    shape: str
    messages: msgspec.Raw | None = None
    text: str | None = None
    input_ids: tuple[int, ...] | None = None
    tools: msgspec.Raw | None = None
    sampling: Sampling | None = None

    def digest(self) -> str:
        """What an id is made of when the row has none."""
        if self.messages is not None:
            body = bytes(self.messages) + bytes(self.tools or b"")
        elif self.text is not None:
            body = self.text.encode()
        else:
            body = repr(self.input_ids).encode()
        return hashlib.sha256(self.shape.encode() + b"\0" + body).hexdigest()[:12]
