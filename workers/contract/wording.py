"""msgspec's validation errors in words for people: what was expected and found, without regular expressions or type names."""

import re
from dataclasses import dataclass

import msgspec

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table of names and values",
    "null": "nothing",
}
_LIMITS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}
_EXPECTED = re.compile(
    r"Expected `(?P<types>[^`]+)`(?: (?P<sign>[<>]=?) (?P<limit>\S+))?(?P<pattern> matching regex .*?)?"
    r"(?:, got `(?P<found>[^`]+)`)?(?: - at `\$\.?(?P<place>[^`]*)`)?"
)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]+)`")


@dataclass(frozen=True)
class Mistake:
    """What is wrong with a value. `place` is its name; `expected` is empty if only its meaning can say."""

    place: str
    expected: str
    found: str = ""

    def sentence(self) -> str:
        """For people."""
        found = f", found {self.found}" if self.found else ""
        return f"{self.place}: expected {self.expected or 'another value'}{found}"


def mistake_of(error: msgspec.ValidationError, known: tuple[str, ...] = ()) -> Mistake | None:
    """The mistake that an error tells of, or None if it is of another kind.

    Args:
        error: Of `msgspec.convert` or a decoder.
        known: Names that are allowed, to be told to who gave another one.
    """
    if unknown := _UNKNOWN.match(str(error)):
        return Mistake(unknown["name"], f"one of {', '.join(known)}" if known else "no such name")
    told = _EXPECTED.fullmatch(str(error))
    if told is None:
        return None
    if told["pattern"]:
        return Mistake(told["place"] or "", "")
    kinds = " or ".join(_TYPES.get(kind, kind) for kind in told["types"].split(" | ") if kind != "null")
    limit = f" {_LIMITS[told['sign']]} {float(told['limit']):g}" if told["sign"] else ""
    return Mistake(told["place"] or "", kinds + limit, _TYPES.get(told["found"] or "", told["found"] or ""))
