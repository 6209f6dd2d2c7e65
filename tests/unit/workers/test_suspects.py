"""The lane of suspects: who runs beside whom; and a simulated search that finds the killer and spares the others."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.suspects import MAX_DEATHS, SuspectLane, lane_width


class Road:
    """A lane, who is in it now (deaths → how many), and the most that ever were."""

    def __init__(self, slots: int) -> None:
        self.lane = SuspectLane()
        self.lane.slots = slots
        self.now: Counter[int] = Counter()
        self.most: Counter[int] = Counter()

    async def go(self, deaths: int) -> None:
        async with self.lane.turn(deaths):
            self.now[deaths] += 1
            self.most[deaths] = max(self.most[deaths], self.now[deaths])
            if deaths > 1:
                assert self.now[1] + self.now[2] == 1
            await asyncio.sleep(0.001)
            self.now[deaths] -= 1


async def test_witnesses_come_a_few_at_a_time_suspects_alone_and_the_rest_freely() -> None:
    road = Road(64)
    async with asyncio.TaskGroup() as group:
        for deaths in [0] * 30 + [1] * 30 + [2] * 5:
            group.create_task(road.go(deaths))
    assert road.most == {0: 30, 1: 8, 2: 1}


async def test_a_turn_that_is_cancelled_or_fails_is_given_on() -> None:
    road, inside = Road(16), asyncio.Event()

    async def holds() -> None:
        async with road.lane.turn(2):
            inside.set()
            await asyncio.Future()

    holder = asyncio.create_task(holds())
    await inside.wait()
    waits, gives_up = asyncio.create_task(road.go(1)), asyncio.create_task(road.go(2))
    await asyncio.sleep(0)
    gives_up.cancel()
    assert not waits.done()
    holder.cancel()
    await asyncio.wait_for(waits, 5)
    with pytest.raises(RuntimeError):
        async with road.lane.turn(2):
            raise RuntimeError
    await asyncio.wait_for(road.go(2), 5)


@given(slots=st.integers(1, 1000))
def test_both_steps_of_the_search_take_about_as_long(slots: int) -> None:
    width = lane_width(slots)
    assert width >= 1
    assert width * width <= slots < (width + 1) ** 2


@given(count=st.integers(2, 60), slots=st.integers(4, 64), data=st.data())
def test_the_one_that_kills_is_found_in_three_deaths_and_nobody_else_fails(count: int, slots: int, data: st.DataObject) -> None:
    killer = data.draw(st.integers(0, count - 1))

    async def search() -> tuple[int, dict[int, int]]:
        road, seen, answered = Road(slots).lane, dict.fromkeys(range(count), 0), set()
        died, engine, free = 0, asyncio.Event(), asyncio.Semaphore(slots)
        engine.set()
        in_flight: set[int] = set()

        async def prompt(number: int) -> None:
            nonlocal died
            while seen[number] < MAX_DEATHS:
                await engine.wait()
                async with road.turn(seen[number]), free:
                    if not engine.is_set():
                        continue
                    in_flight.add(number)
                    await asyncio.sleep(0)
                    if number == killer and engine.is_set():
                        engine.clear()
                        died += 1
                    await asyncio.sleep(0)
                    if not engine.is_set():
                        seen[number] += 1
                        in_flight.discard(number)
                        if not in_flight:
                            engine.set()
                        continue
                    in_flight.discard(number)
                    answered.add(number)
                    return

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(prompt(number))
        assert answered == set(range(count)) - {killer}
        return died, seen

    died, seen = asyncio.run(search())
    assert died == MAX_DEATHS
    assert max(deaths for number, deaths in seen.items() if number != killer) < MAX_DEATHS
