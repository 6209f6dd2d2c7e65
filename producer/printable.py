"""Text for a terminal: ids and messages come from strangers and must not steer it, and one row is not `1 rows`."""


def printable(text: object, limit: int = 200) -> str:
    """`text` with everything that is not printable (control, bidi and format characters) escaped, cut at `limit` characters."""
    shown = "".join(char if char.isprintable() else _escaped(char) for char in str(text)[:limit])
    return shown if len(str(text)) <= limit else shown + "…"


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def counted(count: int, one: str) -> str:
    """`1 batch`, `2,000 batches`, `3 rows`."""
    return f"{count:,} {one if count == 1 else one + ('es' if one.endswith('ch') else 's')}"
