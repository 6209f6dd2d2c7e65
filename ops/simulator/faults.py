"""Faults on demand: which request meets which. Pure; the server acts on what is chosen here.

A rule names a kind and whom it meets: a `share` of the requests (drawn anew for each try of a prompt, the same on every run),
or those whose prompt contains `match`, or has `digest`; at most `count` of them; between `after_s` and `after_s + for_s`.
"""

import random
import tomllib
from pathlib import Path
from typing import Literal

import msgspec

Kind = Literal[
    "status",
    "abort",
    "nan",
    "empty",
    "null_content",
    "cut_in_thinking",
    "error_body",
    "invalid_shape",
    "not_json",
    "disconnect",
    "stall",
    "crash",
    "out_of_memory",
    "repetition",
    "hang",
    "slow",
    "slow_start",
]
OF_THE_SERVER = frozenset({"hang", "slow", "slow_start"})
"""These hold for the whole server while their time lasts; the others meet single requests."""


class Rule(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One fault. For `status`: code, body, retry_after. For `slow`: factor. `seconds`: how long after its start it strikes."""

    kind: Kind
    share: float = 1.0
    match: str | None = None
    digest: str | None = None
    count: int | None = None
    after_s: float = 0.0
    for_s: float | None = None
    code: int = 500
    body: str | None = None
    retry_after: float | None = None
    factor: float = 0.1
    seconds: float = 0.0
    met: int = 0

    def holds_at(self, at_s: float) -> bool:
        """Whether its time is now."""
        return at_s >= self.after_s and (self.for_s is None or at_s < self.after_s + self.for_s)


class FaultPlan(msgspec.Struct, forbid_unknown_fields=True):
    """All rules; the first that meets a request is the one."""

    fault: list[Rule] = []

    def choose(self, prompt_text: str, digest: str, tries: int, at_s: float, seed: int) -> Rule | None:
        """The fault that a request meets.

        Args:
            prompt_text: What `match` is looked for in.
            digest: Of the prompt.
            tries: Earlier requests with this prompt.
            at_s: Since the server started.
            seed: Of the server.
        """
        for place, rule in enumerate(self.fault):
            if rule.kind in OF_THE_SERVER or not rule.holds_at(at_s):
                continue
            if rule.count is not None and rule.met >= rule.count:
                continue
            if rule.match is not None and not _contains(prompt_text, rule.match):
                continue
            if rule.digest is not None and rule.digest != digest:
                continue
            if random.Random(f"{seed}/{place}/{digest}/{tries}").random() >= rule.share:  # noqa: S311
                continue
            rule.met += 1
            return rule
        return None

    def of_the_server(self, kind: Kind, at_s: float) -> Rule | None:
        """A fault of the whole server that holds now."""
        return next((rule for rule in self.fault if rule.kind == kind and rule.holds_at(at_s)), None)


def _contains(text: str, wanted: str) -> bool:
    """`prompt 1` is not found in `prompt 11`: a digit must not follow a digit."""
    start = text.find(wanted)
    while start >= 0:
        end = start + len(wanted)
        if not (wanted[-1:].isdigit() and text[end : end + 1].isdigit()):
            return True
        start = text.find(wanted, start + 1)
    return False


def load_faults(path: Path) -> FaultPlan:
    """Rules from a TOML file: `[[fault]]` tables.

    Raises:
        ValueError: Not TOML, or not rules; says what.
    """
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), FaultPlan)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{path}: {error}") from error
