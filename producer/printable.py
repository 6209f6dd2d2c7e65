"""Text of a run as a terminal may show it: ids and messages come from strangers and must not steer the terminal."""


def printable(text: object, limit: int = 200) -> str:
    """`text` with everything that is not printable (control, bidi and format characters) escaped, cut at `limit` characters."""
    shown = "".join(char if char.isprintable() else _escaped(char) for char in str(text)[:limit])
    return shown if len(str(text)) <= limit else shown + "…"


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
