"""Sampling: groups that stay, drawn by a table's sampler until they were drawn often enough."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import pytest

from sqlreplay import (
    BadArgument,
    BlockingReplayBuffer,
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    ReplayBuffer,
    RolloutState,
    Sample,
    SampleInfo,
    SampleTimeout,
    Staleness,
    Status,
    TableConfig,
    Uniform,
)
from sqlreplay.policy import Selector
from sqlreplay.testing.factories import make_group, numbers_of

__all__ = ["SampleContract", "SampleDamageContract", "SampleOrderContract"]

STEPS = ([5, 5], [2, 7], [5, 9], [2, 2], [6, 6])
PRIORITIES = (0.5, 0.25, 0.5, 0.25, 0.75)
ORDERS: list[tuple[Selector, list[int]]] = [
    (Fifo(), [1, 2, 3, 4, 5]),
    (Lifo(), [5, 4, 3, 2, 1]),
    (MinHeap(), [2, 4, 1, 3, 5]),
    (MaxHeap(), [5, 1, 3, 2, 4]),
    (Staleness(), [2, 4, 1, 3, 5]),
]
IN_ORDER = TableConfig(sampler=Fifo(), remover=Lifo())
ONCE = TableConfig(sampler=Fifo(), remover=Fifo(), max_times_sampled=1)


def numbers_in(samples: Sequence[Sample[list[RolloutState]]]) -> list[int | None]:
    return numbers_of([sample.group for sample in samples])


async def put_numbered(buffer: ReplayBuffer[RolloutState], count: int, task_name: str = "math") -> list[int]:
    return [int(await buffer.put(make_group(number), task_name) or 0) for number in range(count)]


async def put_five(buffer: ReplayBuffer[RolloutState], status: Status = Status.COMPLETED) -> None:
    for number, (steps, priority) in enumerate(zip(STEPS, PRIORITIES, strict=True), start=1):
        group = make_group(number, steps=steps, status=status)
        meta = {"odd": number % 2}
        await buffer.put(group, "math", current_train_step=10, priority=priority, meta=meta)


class SampleOrderContract:
    """Samplers that follow an order, first in, first out among equals."""

    @pytest.mark.parametrize(("sampler", "expected"), ORDERS)
    async def test_the_samplers_order(self, url: str, sampler: Selector, expected: list[int]) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(sampler=sampler, remover=Uniform())}) as buffer:
            await put_five(buffer)
            assert numbers_in(await buffer.sample(5, "math")) == expected
            assert numbers_in(await buffer.sample(2, "math")) == expected[:2]
            odd = await buffer.sample(3, "math", where={"meta.odd": 1})
            assert numbers_in(odd) == [number for number in expected if number % 2]
            assert {sample.info.probability for sample in odd} == {1.0}

    @pytest.mark.parametrize(("sampler", "expected"), ORDERS)
    async def test_the_same_order_in_another_status(self, url: str, sampler: Selector, expected: list[int]) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(sampler=sampler, remover=Uniform())}) as buffer:
            await put_five(buffer, Status.ABORTED)
            assert numbers_in(await buffer.sample(4, "math", group_status=Status.ABORTED)) == expected[:4]
            odd = await buffer.sample(2, "math", group_status="aborted", where={"meta.odd": 1})
            assert numbers_in(odd) == [number for number in expected if number % 2][:2]
            with pytest.raises(SampleTimeout):
                await buffer.sample(1, "math", timeout=0)

    @pytest.mark.parametrize("sampler", [Fifo(), Lifo(), Staleness()])
    async def test_a_take_by_the_same_order_takes_what_a_sample_shows(self, url: str, sampler: Selector) -> None:
        tables = {"math": TableConfig(sampler=sampler, remover=Uniform())}
        async with ReplayBuffer(url, policy=type(sampler).__name__.lower(), tables=tables) as buffer:
            await put_five(buffer)
            for count in (2, 2, 1):
                shown = numbers_in(await buffer.sample(count, "math"))
                taken, _ = await buffer.take_batch({"math": count})
                assert numbers_of(taken["math"]) == shown
            with pytest.raises(SampleTimeout):
                await buffer.sample(1, "math", timeout=0)


class SampleContract:
    """What `sample` draws, counts, removes and waits for."""

    @pytest.mark.parametrize("sampler", [Uniform(), Prioritized(1.0), Fifo()])
    async def test_a_batch_holds_no_group_twice(self, url: str, sampler: Selector) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(sampler=sampler, remover=Uniform())}) as buffer:
            for number in range(8):
                await buffer.put(make_group(number), "math", priority=10.0**number)
            for _ in range(5):
                samples = await buffer.sample(7, "math")
                assert len({sample.info.uid for sample in samples}) == len(set(numbers_in(samples))) == 7
            assert await buffer.size() == 8

    async def test_draws_are_counted_and_the_groups_stay(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": IN_ORDER}) as buffer:
            uids = await put_numbered(buffer, 3)
            [first] = await buffer.sample(1, "math")
            assert first.group == make_group(0)
            assert first.info == SampleInfo(uids[0], 1.0, 3, 1.0, 1, 1.0)
            assert [sample.info.times_sampled for sample in await buffer.sample(2, "math")] == [2, 1]
            assert [found.uid for found in await buffer.find({"times_sampled": {"$gt": 0}})] == uids[:2]
            assert await buffer.count_where({"times_sampled": 2, "uid": uids[0]}) == 1
            assert await buffer.count("math", Status.COMPLETED) == 3
            assert (await buffer.stats()).process["sampled_total"] == 3

    async def test_probabilities_and_importance_weights(self, url: str) -> None:
        tables = {"math": TableConfig(sampler=Prioritized(1.0, beta=1.0))}
        async with ReplayBuffer(url, tables=tables) as buffer:
            for number, priority in enumerate([1.0, 3.0, 4.0]):
                await buffer.put(make_group(number), "math", priority=priority)
            for info in (sample.info for sample in await buffer.sample(3, "math")):
                assert info.probability == pytest.approx(info.priority / 8)
                assert info.weight == pytest.approx(1 / info.priority)
                assert info.table_size == 3
            for info in (sample.info for sample in await buffer.sample(2, "math", where={"priority": {"$lt": 4}})):
                assert info.probability == pytest.approx(info.priority / 4)

    async def test_priority_zero_comes_last(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(sampler=Prioritized(0.6))}) as buffer:
            for number, priority in enumerate([0.0, 1.0, 0.0, 2.0]):
                await buffer.put(make_group(number), "math", priority=priority)
            for _ in range(5):
                assert set(numbers_in(await buffer.sample(3, "math"))[:2]) == {1, 3}

    async def test_the_last_draw_removes(self, url: str) -> None:
        tables = {"math": TableConfig(sampler=Fifo(), remover=Fifo(), max_times_sampled=2)}
        async with ReplayBuffer(url, tables=tables) as buffer:
            await put_numbered(buffer, 3)
            assert numbers_in(await buffer.sample(2, "math")) == [0, 1]
            assert await buffer.size() == 3
            last = await buffer.sample(2, "math")
            assert [sample.group for sample in last] == [make_group(0), make_group(1)]
            assert [sample.info.times_sampled for sample in last] == [2, 2]
            assert await buffer.size() == 1
            assert numbers_in(await buffer.sample(1, "math", where={"num_samples": 2})) == [2]
            assert numbers_in(await buffer.sample(1, "math")) == [2]
            assert await buffer.size() == 0
            assert (await buffer.stats()).tasks["math"].bytes == 0

    async def test_a_task_that_is_no_table_is_drawn_evenly(self, url: str) -> None:
        async with ReplayBuffer(url, seed=11) as buffer:
            await put_numbered(buffer, 4)
            await buffer.put(make_group(9, status=Status.FAILED), "math")
            seen: Counter[int | None] = Counter()
            for _ in range(40):
                [sample] = await buffer.sample(1, "math")
                assert (sample.info.probability, sample.info.table_size, sample.info.weight) == (0.25, 4, 1.0)
                seen.update(numbers_in([sample]))
            assert set(seen) == {0, 1, 2, 3}
            assert numbers_in(await buffer.sample(1, "math", group_status=Status.FAILED)) == [9]
            assert await buffer.size() == 5
            assert await buffer.count_where({"times_sampled": {"$gt": 0}}) == 5

    async def test_numbers_that_can_never_be_drawn_are_refused(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(max_size=4)}) as buffer:
            for number in (0, -1, True, 1.5):
                with pytest.raises(ValueError, match="expected"):
                    await buffer.sample(number, "math")  # type: ignore[arg-type]
            with pytest.raises(BadArgument, match=r"5 groups were asked of 'math'.*max_size=4"):
                await buffer.sample(5, "math")

    async def test_what_expires_or_fails_is_not_drawn(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": IN_ORDER}) as buffer:
            for number, step in enumerate([1, 9, 9]):
                await buffer.put(make_group(number, steps=[step, step]), "math")
            await buffer.refresh_staleness(task_stale_thresholds={"math": 5}, current_train_step=10)
            assert numbers_in(await buffer.sample(2, "math")) == [1, 2]
            assert numbers_in(await buffer.sample(1, "math", group_status=Status.EXPIRED)) == [0]
            [found] = await buffer.find({"status": "completed"}, limit=1)
            found.status = Status.FILTERED
            await buffer.update([found])
            with pytest.raises(SampleTimeout, match="2 groups were asked and 1 can be sampled"):
                await buffer.sample(2, "math", timeout=0)

    @pytest.mark.parametrize("sampler", [Uniform(), Prioritized(0.5)])
    async def test_a_seed_gives_the_same_draws(self, url: str, sampler: Selector) -> None:
        drawn = []
        for run, seed in (("first", 7), ("second", 7), ("third", 8)):
            async with ReplayBuffer(url, run=run, seed=seed, tables={"math": TableConfig(sampler=sampler)}) as buffer:
                for number in range(20):
                    await buffer.put(make_group(number), "math", priority=number + 1)
                drawn.append([numbers_in(await buffer.sample(5, "math")) for _ in range(4)])
        assert drawn[0] == drawn[1] != drawn[2]

    def test_the_verbs_without_await(self, url: str) -> None:
        with BlockingReplayBuffer(url, tables={"math": TableConfig(sampler=MaxHeap())}, seed=3) as buffer:
            uids = [int(buffer.put(make_group(number), "math") or 0) for number in range(3)]
            assert buffer.update_priorities("math", {uids[1]: 5.0, 10**9: 1.0}) == [10**9]
            assert numbers_in(buffer.sample(1, "math", timeout=20)) == [1]
            assert numbers_in(buffer.sample_mixed(2, "math", fresh_ratio=0.5)) == [0, 1]
            buffer.set_table("math", TableConfig(sampler=MinHeap(), max_size=2))
            assert numbers_in(buffer.sample(2, "math")) == [2, 1]
            buffer.set_capacity(max_size=1)
            assert len(buffer) == 1
            with pytest.raises(ValueError, match="at most max_size=1"):
                buffer.sample(2, "math", timeout=0)


class SampleDamageContract:
    """Bytes that do not read back. Needs the fixture `damage` of `DamageContract`."""

    async def test_another_takes_its_place(self, url: str, damage: Callable[[int], Awaitable[None]]) -> None:
        async with ReplayBuffer(url, tables={"math": IN_ORDER}) as buffer:
            uids = await put_numbered(buffer, 4)
            await damage(uids[1])
            assert numbers_in(await buffer.sample(3, "math")) == [0, 2, 3]
            assert await buffer.count("math", Status.FAILED) == 1
            assert await buffer.count_where({"uid": uids[1], "error": {"$gte": f"Group {uids[1]}"}}) == 1
            assert (await buffer.stats()).process["set_aside_total"] == 1
            assert numbers_in(await buffer.sample(3, "math", timeout=20)) == [0, 2, 3]
            with pytest.raises(SampleTimeout, match="4 groups were asked and 3 can be sampled"):
                await buffer.sample(4, "math", timeout=0)

    async def test_it_is_set_aside_even_by_its_last_draw(
        self, url: str, damage: Callable[[int], Awaitable[None]]
    ) -> None:
        async with ReplayBuffer(url, tables={"math": ONCE}) as buffer:
            uids = await put_numbered(buffer, 4)
            await damage(uids[1])
            assert numbers_in(await buffer.sample(2, "math", timeout=20)) == [0, 2]
            assert await buffer.count("math", Status.FAILED) == 1
            assert await buffer.size() == 2

    async def test_the_good_ones_are_not_lost_when_nothing_takes_its_place(
        self, url: str, damage: Callable[[int], Awaitable[None]]
    ) -> None:
        async with ReplayBuffer(url, tables={"math": ONCE}) as buffer:
            uids = await put_numbered(buffer, 2)
            await damage(uids[1])
            with pytest.raises(SampleTimeout):
                await buffer.sample(2, "math", timeout=0.1)
            assert numbers_in(await buffer.sample(1, "math", timeout=5)) == [0]
