import asyncio

import pytest

from workers.slots import Slots, low_water_mark, slots_for


@pytest.mark.parametrize(("running_limit", "slots"), [(1, 2), (16, 20), (40, 50), (2048, 2560)])
def test_auto_adds_a_quarter_of_backlog(running_limit: int, slots: int) -> None:
    assert slots_for(running_limit) == slots


@pytest.mark.parametrize(
    ("slots", "ends_per_s", "reserve_s", "mark"),
    [(1, 0, 0, 1), (7, 0, 0, 1), (40, 0, 0, 2), (96, 0, 0, 6), (40, 8, 0.1, 2), (96, 1500, 0.01, 30), (96, 1500, 1.0, 96)],
)
def test_low_water_mark_bridges_the_fetch_of_a_batch_and_no_more(
    slots: int, ends_per_s: float, reserve_s: float, mark: int
) -> None:
    assert low_water_mark(slots, ends_per_s, reserve_s) == mark


async def test_a_prompt_between_two_tries_is_in_hand_so_nothing_is_taken_in_its_place() -> None:
    slots = Slots(8)
    with slots.held_back(), slots.held_back():
        assert (slots.unstarted, slots.wants_batch) == (2, False)
    assert slots.wants_batch


async def test_a_slot_that_was_given_while_nothing_starts_any_more_comes_back() -> None:
    slots = Slots(1)
    slots.stop_starting()
    waiting = asyncio.create_task(hold(slots, [], 1, asyncio.Event()))
    await settle()
    waiting.cancel()
    await settle()
    assert (slots._held, slots.unstarted) == (0, 0)


async def hold(slots: Slots, order: list[int], number: int, release: asyncio.Event) -> None:
    async with slots.take():
        order.append(number)
        await release.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_slots_are_taken_in_the_order_in_which_they_were_asked_for() -> None:
    order: list[int] = []
    slots, release = Slots(2), asyncio.Event()
    tasks = [asyncio.create_task(hold(slots, order, number, release)) for number in range(5)]
    await settle()
    assert (order, slots.in_flight, slots.unstarted) == ([0, 1], 2, 3)
    release.set()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]
    assert (slots.in_flight, slots.unstarted, slots.finished) == (0, 0, 5)


async def test_next_batch_is_wanted_only_when_the_unstarted_prompts_reach_the_low_water_mark() -> None:
    asked: list[int] = []
    release = asyncio.Event()
    slots = Slots(8, on_low_water=lambda: asked.append(1))
    tasks = [asyncio.create_task(hold(slots, [], number, release)) for number in range(11)]
    await settle()
    assert slots.unstarted == 3
    assert not slots.wants_batch
    release.set()
    await asyncio.gather(*tasks)
    assert slots.wants_batch
    assert asked


async def test_a_cancelled_wait_gives_its_place_back() -> None:
    slots, release = Slots(1), asyncio.Event()
    first = asyncio.create_task(hold(slots, [], 1, release))
    second = asyncio.create_task(hold(slots, [], 2, release))
    await settle()
    second.cancel()
    await settle()
    assert (slots.in_flight, slots.unstarted) == (1, 0)
    release.set()
    await first
    async with slots.take():
        assert slots.in_flight == 1


async def test_an_error_in_a_slot_frees_it() -> None:
    slots = Slots(1)
    with pytest.raises(ValueError, match="boom"):
        async with slots.take():
            raise ValueError("boom")
    assert slots.in_flight == 0


async def test_after_stop_starting_what_is_in_flight_ends_and_nothing_begins() -> None:
    order: list[int] = []
    slots, release = Slots(1), asyncio.Event()
    first = asyncio.create_task(hold(slots, order, 1, release))
    second = asyncio.create_task(hold(slots, order, 2, release))
    await settle()
    slots.stop_starting()
    release.set()
    await first
    await settle()
    assert order == [1]
    second.cancel()


async def test_slots_grow_at_once_and_shrink_with_the_requests_that_end() -> None:
    order: list[int] = []
    slots, release = Slots(3), asyncio.Event()
    first = [asyncio.create_task(hold(slots, order, number, release)) for number in range(3)]
    await settle()
    slots.resize(1)
    waiting = [asyncio.create_task(hold(slots, order, number, asyncio.Event())) for number in (3, 4)]
    release.set()
    await asyncio.gather(*first)
    await settle()
    assert slots.in_flight == 1
    slots.resize(2)
    await settle()
    assert slots.in_flight == 2
    for task in waiting:
        task.cancel()


async def test_slots_that_are_free_are_gone_at_once_when_they_shrink() -> None:
    slots, release = Slots(20), asyncio.Event()
    slots.resize(2)
    tasks = [asyncio.create_task(hold(slots, [], number, release)) for number in range(5)]
    await settle()
    assert (slots.in_flight, slots.unstarted) == (2, 3)
    release.set()
    await asyncio.gather(*tasks)


async def test_many_cancelled_waits_leave_all_slots_free() -> None:
    slots, release = Slots(2), asyncio.Event()
    tasks = [asyncio.create_task(hold(slots, [], number, release)) for number in range(500)]
    await settle()
    for task in tasks[2:]:
        task.cancel()
    release.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (slots.in_flight, slots.unstarted) == (0, 0)
    async with slots.take(), slots.take():
        assert slots.in_flight == 2
