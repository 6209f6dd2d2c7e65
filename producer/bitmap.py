"""Bitmaps in the order of Redis: bit 0 is the highest bit of the first byte. Pure."""

from collections.abc import Iterator


class Bitmap:
    """A set of numbers below `size`."""

    def __init__(self, size: int, body: bytes = b"") -> None:
        self.size = size
        self._bytes = bytearray((size + 7) // 8)
        kept = body[: len(self._bytes)]
        self._bytes[: len(kept)] = kept

    @classmethod
    def full(cls, size: int) -> "Bitmap":
        """All numbers below `size`."""
        bitmap = cls(size, b"\xff" * ((size + 7) // 8))
        if size % 8:
            bitmap._bytes[-1] = 0xFF << (8 - size % 8) & 0xFF
        return bitmap

    def add(self, number: int) -> None:
        """Put a number in."""
        self._bytes[number // 8] |= 0x80 >> number % 8

    def __contains__(self, number: int) -> bool:
        return bool(self._bytes[number // 8] & (0x80 >> number % 8))

    def __len__(self) -> int:
        return int.from_bytes(self._bytes, "big").bit_count()

    def absent(self) -> Iterator[int]:
        """Numbers that are not in it, ascending."""
        for place, byte in enumerate(self._bytes):
            if byte != 0xFF:
                for bit in range(8):
                    number = place * 8 + bit
                    if not byte & (0x80 >> bit) and number < self.size:
                        yield number

    def body(self) -> bytes:
        """As Redis keeps it."""
        return bytes(self._bytes)
