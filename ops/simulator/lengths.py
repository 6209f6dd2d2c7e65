"""How long an answer is, and its words. Pure: the same seed and prompt give the same answer on every run."""

import hashlib
import math
import random
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

import msgspec

SENTENCE = (
    "the fleet reads a queue and each engine answers in turn while counters rise slowly toward an honest total of rows "
    "that nobody lost or doubled because every batch carries its name into the store where proof waits for the reader"
)
WORDS = SENTENCE.split()
LOOP = ("again", "and")


@dataclass(frozen=True)
class LengthModel:
    """Lognormal lengths in tokens: mean `mean_tokens` before the cap, spread `sigma` of the logarithm, at most `cap`."""

    mean_tokens: float
    sigma: float
    cap: int
    seed: int

    def tokens(self, digest: str) -> int:
        """Tokens of the answer to a prompt, by its digest."""
        mu = math.log(self.mean_tokens) - self.sigma**2 / 2
        draw = self.random(digest, "length").lognormvariate(mu, self.sigma)
        return max(1, min(self.cap, round(draw)))

    def random(self, digest: str, purpose: str) -> random.Random:
        """A source of randomness of its own for each prompt and purpose."""
        return random.Random(f"{self.seed}/{digest}/{purpose}")  # noqa: S311  (a rehearsal must repeat)

    def words(self, digest: str, count: int) -> list[str]:
        """`count` words, each standing for one token, with its leading space."""
        start = self.random(digest, "words").randrange(len(WORDS))
        return [" " + WORDS[(start + place) % len(WORDS)] for place in range(count)]


def words_until(words: list[str], stops: list[str]) -> tuple[int, str] | None:
    """How many words are decoded until their text holds one of `stops`, and which; None if none of them occurs."""
    text = "".join(words)
    ends = [(place + len(stop), stop) for stop in stops if stop and (place := text.find(stop)) >= 0]
    if not ends:
        return None
    first, stop = min(ends)
    return bisect_left(list(accumulate(map(len, words))), first) + 1, stop


def digest_of(value: bytes) -> str:
    """First 16 hex digits of SHA-256."""
    return hashlib.sha256(value).hexdigest()[:16]


def prompt_digest(body: dict[str, object]) -> str:
    """What tells prompts apart: UTF-8 of a text, canonical JSON of messages or token ids; nothing else of the request."""
    for name in ("text", "prompt"):
        if isinstance(value := body.get(name), str):
            return digest_of(value.encode())
    for name in ("messages", "input_ids", "text", "prompt"):
        if name in body:
            return digest_of(msgspec.json.encode(body[name], order="sorted"))
    return digest_of(b"")


def prompt_tokens(body: dict[str, object]) -> int:
    """About as many tokens as a tokenizer would find: a token in four characters."""
    if isinstance(ids := body.get("input_ids"), list):
        return len(ids)
    text = body.get("text", body.get("prompt", body.get("messages", "")))
    size = len(text) if isinstance(text, str) else len(msgspec.json.encode(text))
    return max(1, math.ceil(size / 4))
