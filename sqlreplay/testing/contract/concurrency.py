"""Many callers of one process: tasks, event loops and threads that share a buffer, and calls that are cancelled."""

import asyncio
import random
import threading
import time
from collections import Counter

from sqlreplay import ReplayBuffer, RolloutState, Status
from sqlreplay.testing.factories import make_group, numbers_of

__all__ = ["CancellationContract", "ConcurrencyContract"]

CANCELLED_CALLS = 200
LONGEST_WAIT_S = 0.02


def chance_with_seed() -> tuple[int, random.Random]:
    """Return a source of chance; every assertion on what it led to names its seed."""
    seed = time.time_ns() % 2**32
    return seed, random.Random(seed)


async def numbers_left(url: str) -> list[int | None]:
    """Return what a fresh handle finds, once the last one has closed and all that was under way has ended."""
    async with ReplayBuffer(url) as buffer:
        found = await buffer.find()
        assert all(len(stored.item) == 2 for stored in found)
        return numbers_of([stored.item for stored in found])


class ConcurrencyContract:
    """Every put is stored once, and every group goes to one taker."""

    async def test_puts_at_the_same_time_are_all_stored(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            uids = await asyncio.gather(
                *(buffer.put(make_group(number), f"task {number % 3}") for number in range(200))
            )
            found = await buffer.find()
        assert len(set(uids)) == 200
        assert {stored.uid: stored.item[0].group_id for stored in found} == {
            uid: number for number, uid in enumerate(uids)
        }

    async def test_a_bad_put_fails_alone(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            outcomes = await asyncio.gather(
                *(
                    buffer.put(make_group(number, extra_fields={"bad": print} if number == 7 else {}), "math")
                    for number in range(20)
                ),
                return_exceptions=True,
            )
            assert [number for number, uid in enumerate(outcomes) if isinstance(uid, Exception)] == [7]
            assert await buffer.size() == 19

    async def test_takers_at_the_same_time_share_nothing(self, url: str) -> None:
        async with ReplayBuffer(url) as first, ReplayBuffer(url, policy="lifo") as second:
            for number in range(100):
                await first.put(make_group(number), "math")
            batches = await asyncio.gather(
                *((first, second)[taker % 2].get(5, "math", Status.COMPLETED) for taker in range(20))
            )
            left = await first.find()
        taken = [number for batch in batches for number in numbers_of(batch)]
        assert sorted(map(str, taken + numbers_of([stored.item for stored in left]))) == sorted(map(str, range(100)))

    async def test_takers_that_need_a_full_batch_do_not_starve_each_other(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            takers = [
                asyncio.create_task(buffer.take_batch({"math": 5, "code": 5}, timeout=60, require_full=True))
                for _ in range(6)
            ]
            await asyncio.gather(
                *(buffer.put(make_group(number), ("math", "code")[number % 2]) for number in range(60))
            )
            batches = await asyncio.gather(*takers)
            assert await buffer.size() == 0
        taken = Counter(number for groups, _ in batches for task in groups.values() for number in numbers_of(task))
        assert taken == Counter(range(60))

    async def test_several_event_loops_and_threads_share_one_buffer(self, url: str) -> None:
        buffer = ReplayBuffer(url)
        taken: list[int | None] = []
        errors: list[BaseException] = []

        async def put_and_take(first: int) -> None:
            await asyncio.gather(*(buffer.put(make_group(first + number), "math") for number in range(20)))
            taken.extend(numbers_of(await buffer.get(20, "math", Status.COMPLETED)))

        def in_a_loop_of_its_own(first: int) -> None:
            try:
                asyncio.run(put_and_take(first))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=in_a_loop_of_its_own, args=(100 * index,)) for index in range(5)]
        for thread in threads:
            thread.start()
        await put_and_take(1000)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        try:
            assert errors == []
            assert sorted(map(str, taken)) == sorted(
                str(first + number) for first in (0, 100, 200, 300, 400, 1000) for number in range(20)
            )
            assert len(buffer) == 0
        finally:
            await buffer.close()


class CancellationContract:
    """A caller that gives up loses nothing and leaves nothing half done."""

    async def test_a_cancelled_take_loses_nothing(self, url: str) -> None:
        seed, chance = chance_with_seed()
        returned: list[int | None] = []
        timeouts = 0
        async with ReplayBuffer(url) as buffer:
            await asyncio.gather(*(buffer.put(make_group(number), "math") for number in range(100)))
            for _ in range(CANCELLED_CALLS):
                try:
                    groups, _ = await asyncio.wait_for(
                        buffer.take_batch({"math": 2, "code": chance.choice([0, 1])}, timeout=chance.choice([None, 5])),
                        chance.random() * LONGEST_WAIT_S,
                    )
                except TimeoutError:
                    timeouts += 1
                else:
                    taken = numbers_of(groups["math"])
                    returned += taken
                    await asyncio.gather(*(buffer.put(make_group(1000 + int(number or 0)), "done") for number in taken))
        left = [number for number in await numbers_left(url) if number is not None and number < 1000]
        assert Counter(returned) + Counter(left) == Counter(range(100)), f"seed {seed}"
        assert timeouts, f"seed {seed}"
        assert returned, f"seed {seed}"

    async def test_a_cancelled_put_is_all_or_nothing(self, url: str) -> None:
        seed, chance = chance_with_seed()
        kept: set[int | None] = set()

        async def put(buffer: ReplayBuffer[RolloutState], number: int) -> None:
            try:
                await asyncio.wait_for(buffer.put(make_group(number), "math"), chance.random() * LONGEST_WAIT_S)
            except TimeoutError:
                return
            kept.add(number)

        async with ReplayBuffer(url) as buffer:
            for first in range(0, CANCELLED_CALLS, 10):
                await asyncio.gather(*(put(buffer, number) for number in range(first, first + 10)))
        left = await numbers_left(url)
        assert len(left) == len(set(left)), f"seed {seed}"
        assert kept <= set(left), f"seed {seed}"
        assert set(left) <= set(range(CANCELLED_CALLS)), f"seed {seed}"

    async def test_a_cancelled_waiter_takes_nothing_later(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            taking = asyncio.create_task(buffer.take_batch({"math": 1}, timeout=1))
            await asyncio.sleep(0.05)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            await buffer.put(make_group(1), "math")
            await asyncio.sleep(0.1)
        assert await numbers_left(url) == [1]
