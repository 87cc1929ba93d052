"""Rate limiters, and what else a sample or a put waits for: that it says why, is woken, and leaves nothing behind."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from sqlreplay import (
    BadArgument,
    Fifo,
    Lifo,
    MinSize,
    PutTimeout,
    Queue,
    ReplayBuffer,
    RolloutState,
    Sample,
    SampleTimeout,
    SampleToInsertRatio,
    Stack,
    Status,
    StoreClosed,
    Table,
    TableConfig,
)
from sqlreplay.testing.factories import make_group, numbers_of

__all__ = ["RateLimiterContract", "SampleWaitContract"]

IN_ORDER = TableConfig(sampler=Fifo(), remover=Lifo())
ONCE = TableConfig(sampler=Fifo(), remover=Fifo(), max_times_sampled=1)
QUEUE_OF_TWO = TableConfig(sampler=Fifo(), remover=Fifo(), max_times_sampled=1, rate_limiter=Queue(2))
STACK_OF_TWO = TableConfig(sampler=Lifo(), remover=Lifo(), max_times_sampled=1, rate_limiter=Stack(2))
TWICE_EACH = TableConfig(rate_limiter=SampleToInsertRatio(2.0, min_size_to_sample=1, error_buffer=4.0))
CANCELLED_CALLS = 150
LONGEST_WAIT_S = 0.02


def numbers_in(samples: Sequence[Sample[list[RolloutState]]]) -> list[int | None]:
    return numbers_of([sample.group for sample in samples])


async def put_numbered(buffer: ReplayBuffer[RolloutState], *numbers: int) -> None:
    for number in numbers:
        await buffer.put(make_group(number), "math", timeout=20)


class SampleWaitContract:
    """A sample waits for as long as it must, and a caller that gives up changes nothing that lasts."""

    async def test_it_waits_until_enough_were_put(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": IN_ORDER}) as buffer, ReplayBuffer(url) as putter:
            plain = asyncio.create_task(buffer.sample(1, "no table"))
            sampling = asyncio.create_task(buffer.sample(2, "math"))
            filtered = asyncio.create_task(buffer.sample(1, "math", where={"meta.good": True}))
            await asyncio.sleep(0.03)
            await putter.put(make_group(1), "math")
            await asyncio.sleep(0.03)
            assert not any(waiting.done() for waiting in (plain, sampling, filtered))
            await putter.put(make_group(2), "math", meta={"good": True})
            await putter.put(make_group(3), "no table")
            assert numbers_in(await asyncio.wait_for(sampling, 20)) == [1, 2]
            assert numbers_in(await asyncio.wait_for(filtered, 20)) == [2]
            assert numbers_in(await asyncio.wait_for(plain, 20)) == [3]

    async def test_a_timeout_says_why(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": IN_ORDER}) as buffer:
            await buffer.put(make_group(1), "math")
            with pytest.raises(TimeoutError, match=r"No sample after 0.05 s.*2 groups were asked and 1 can be"):
                await buffer.sample(2, "math", timeout=0.05)
            with pytest.raises(SampleTimeout, match="'code' holds no groups yet"):
                await buffer.sample(1, "code", timeout=0)
            with pytest.raises(SampleTimeout, match="match"):
                await buffer.sample(1, "math", where={"num_samples": 9}, timeout=0)
            with pytest.raises(SampleTimeout, match="1 groups were asked of 'math' and 0 match"):
                await buffer.sample(1, "math", group_status=Status.FAILED, timeout=0)
            assert await buffer.count_where({"times_sampled": 0}) == 1

    async def test_closing_ends_the_wait(self, url: str) -> None:
        buffer = ReplayBuffer(url, tables={"math": IN_ORDER})
        sampling = asyncio.create_task(buffer.sample(1, "math"))
        await asyncio.sleep(0.1)
        await buffer.close()
        with pytest.raises(StoreClosed):
            await asyncio.wait_for(sampling, 20)

    async def test_a_cancelled_sample_loses_nothing(self, url: str) -> None:
        seed = time.time_ns() % 2**32
        chance = random.Random(seed)
        returned: list[int | None] = []
        async with ReplayBuffer(url, tables={"math": ONCE}) as buffer:
            await asyncio.gather(*(buffer.put(make_group(number), "math") for number in range(100)))
            for _ in range(CANCELLED_CALLS):
                try:
                    samples = await asyncio.wait_for(buffer.sample(2, "math"), chance.random() * LONGEST_WAIT_S)
                except TimeoutError:
                    continue
                returned += numbers_in(samples)
        async with ReplayBuffer(url) as buffer:
            left = numbers_of([found.item for found in await buffer.find()])
            assert Counter(returned) + Counter(left) == Counter(range(100)), f"seed {seed}"
            if left:
                assert numbers_in(await buffer.sample(len(left), "math", timeout=20)) == left, f"seed {seed}"
        with Table(url, "math", Fifo(), Fifo(), max_times_sampled=1) as table:
            assert (table.info.inserts, table.info.samples, table.info.deletes) == (100, 100, 100), f"seed {seed}"

    async def test_a_cancelled_waiter_draws_nothing_later(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": IN_ORDER}) as buffer:
            sampling = asyncio.create_task(buffer.sample(1, "math"))
            await asyncio.sleep(0.05)
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
            await buffer.put(make_group(1), "math")
            await asyncio.sleep(0.1)
            assert await buffer.count_where({"times_sampled": 0}) == 1


class RateLimiterContract:
    """How far sampling may run ahead of insertion, and the other way round."""

    async def test_min_size_holds_samples_back(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(rate_limiter=MinSize(3))}) as buffer:
            await put_numbered(buffer, 1, 2)
            with pytest.raises(SampleTimeout, match=r"MinSize\(size=3\) waits for 3 groups and the table holds 2"):
                await buffer.sample(1, "math", timeout=0.05)
            await put_numbered(buffer, 3, 4)
            assert len(await buffer.sample(1, "math", timeout=20)) == 1
            await buffer.take_batch({"math": 2})
            with pytest.raises(SampleTimeout, match="the table holds 2"):
                await buffer.sample(1, "math", where={"num_samples": 2}, timeout=0)

    async def test_a_ratio_holds_inserts_back(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TWICE_EACH}) as buffer:
            await put_numbered(buffer, 1, 2, 3)
            with pytest.raises(PutTimeout, match=r"4 inserts \* 2 - 0 samples = 8, above 6: it waits for samples"):
                await buffer.put(make_group(4), "math", timeout=0.05)
            assert await buffer.size() == 3
            await buffer.sample(2, "math")
            await put_numbered(buffer, 4)
            with pytest.raises(PutTimeout):
                await buffer.put(make_group(5), "math", timeout=0)
            assert await buffer.size() == 4

    async def test_a_ratio_holds_samples_back(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TWICE_EACH}) as buffer:
            await put_numbered(buffer, 1, 2)
            for _ in range(3):
                await buffer.sample(2, "math", timeout=20)
            with pytest.raises(
                SampleTimeout, match=r"2 inserts \* 2 - 6 samples - 1 asked = -3, below -2: it waits for inserts"
            ):
                await buffer.sample(1, "math", timeout=0.05)
            await put_numbered(buffer, 3)
            assert len(await buffer.sample(2, "math", timeout=20)) == 2
            with pytest.raises(BadArgument, match="9 groups were asked at once"):
                await buffer.sample(9, "math")

    @pytest.mark.parametrize(("config", "order"), [(QUEUE_OF_TWO, [1, 2]), (STACK_OF_TWO, [2, 1])])
    async def test_a_queue_and_a_stack(self, url: str, config: TableConfig, order: list[int]) -> None:
        async with ReplayBuffer(url, tables={"math": config}) as buffer:
            name = type(config.rate_limiter).__name__
            with pytest.raises(SampleTimeout, match=rf"{name}\(size=2\) waits for 1 groups and the table holds 0"):
                await buffer.sample(1, "math", timeout=0)
            await put_numbered(buffer, 1, 2)
            with pytest.raises(TimeoutError, match=rf"not stored.*{name}\(size=2\).*waits for samples"):
                await buffer.put(make_group(3), "math", timeout=0.05)
            assert numbers_in(await buffer.sample(2, "math")) == order
            assert await buffer.size() == 0
            with pytest.raises(SampleTimeout):
                await buffer.sample(1, "math", timeout=0)
            with pytest.raises(BadArgument, match="3 groups were asked at once"):
                await buffer.sample(3, "math")

    async def test_takes_count_as_samples(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": QUEUE_OF_TWO, "code": TWICE_EACH}) as buffer:
            for first in (1, 3, 5):
                await put_numbered(buffer, first, first + 1)
                taken, _ = await buffer.take_batch({"math": 2})
                assert numbers_of(taken["math"]) == [first, first + 1]
            for number in (1, 2, 3):
                await buffer.put(make_group(number), "code", timeout=20)
            await buffer.take_batch({"code": 2})
            await buffer.put(make_group(4), "code", timeout=20)

    async def test_a_waiting_put_is_woken_by_a_sample(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": QUEUE_OF_TWO}) as buffer, ReplayBuffer(url) as putter:
            await put_numbered(buffer, 1, 2)
            putting = asyncio.create_task(putter.put(make_group(3), "math"))
            await asyncio.sleep(0.1)
            assert not putting.done()
            assert await buffer.size() == 2
            assert numbers_in(await buffer.sample(1, "math")) == [1]
            uid = await asyncio.wait_for(putting, 20)
            assert numbers_in(await buffer.sample(2, "math")) == [2, 3]
            assert uid is not None

    async def test_many_go_through_a_narrow_queue_once_each(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": QUEUE_OF_TWO}) as buffer:
            putting = [asyncio.create_task(buffer.put(make_group(number), "math")) for number in range(20)]
            samples = [sample for _ in range(10) for sample in await buffer.sample(2, "math", timeout=60)]
            await asyncio.wait_for(asyncio.gather(*putting), 20)
            assert Counter(numbers_in(samples)) == Counter(range(20))
            assert await buffer.size() == 0

    async def test_a_put_that_is_given_up_or_closed_is_not_stored(self, url: str) -> None:
        buffer = ReplayBuffer(url, tables={"math": QUEUE_OF_TWO})
        await put_numbered(buffer, 1, 2)
        given_up = asyncio.create_task(buffer.put(make_group(3), "math"))
        closed = asyncio.create_task(buffer.put(make_group(4), "math"))
        await asyncio.sleep(0.1)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        await buffer.close()
        with pytest.raises(StoreClosed):
            await asyncio.wait_for(closed, 20)
        async with ReplayBuffer(url) as again:
            assert numbers_in(await again.sample(2, "math", timeout=20)) == [1, 2]
            assert await again.size() == 0

    async def test_counters_survive_reopening(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TWICE_EACH}) as buffer:
            await put_numbered(buffer, 1, 2, 3)
        async with ReplayBuffer(url) as buffer:
            with pytest.raises(PutTimeout, match=r"4 inserts \* 2 - 0 samples"):
                await buffer.put(make_group(4), "math", timeout=0)
            await buffer.sample(3, "math")
        async with ReplayBuffer(url, tables={"math": TWICE_EACH}) as buffer:
            await put_numbered(buffer, 4)
            with pytest.raises(PutTimeout, match=r"5 inserts \* 2 - 3 samples"):
                await buffer.put(make_group(5), "math", timeout=0)
