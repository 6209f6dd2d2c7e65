from hypothesis import given
from hypothesis import strategies as st

from workers.contract import layout
from workers.sweep import waiting_batches


def bitmap(numbers: set[int]) -> bytes:
    body = bytearray(max(numbers) // 8 + 1 if numbers else 0)
    for number in numbers:
        body[number // 8] |= 0x80 >> number % 8
    return bytes(body)


numbers = st.sets(st.integers(0, 200))


@given(pushed=numbers, done=numbers, leased=numbers)
def test_waiting_is_pushed_and_neither_done_nor_leased(pushed: set[int], done: set[int], leased: set[int]) -> None:
    labels = [layout.batch_label(number) for number in leased]
    assert waiting_batches(bitmap(pushed), bitmap(done), labels) == sorted(pushed - done - leased)
