"""Capacity: how much a table, or a run as a whole, may hold, and who gives way."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from sqlreplay import (
    BadArgument,
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    PutTimeout,
    ReplayBuffer,
    RolloutState,
    SampleTimeout,
    Staleness,
    Status,
    Stored,
    Table,
    TableConfig,
    TableFull,
    Uniform,
)
from sqlreplay.policy import Selector
from sqlreplay.rules import OnFull
from sqlreplay.testing.factories import make_group, numbers_of

__all__ = ["CapacityContract", "RunCapacityContract"]

STEPS = ([5, 5], [2, 7], [5, 9], [2, 2], [6, 6])
PRIORITIES = (0.5, 0.25, 0.5, 0.25, 0.75)


def noise(number: int, size: int = 1000) -> bytes:
    """Return bytes that no compression makes smaller, the same for the same number."""
    return random.Random(number).randbytes(size)


async def put(buffer: ReplayBuffer[Any], group: Sequence[Any], task_name: str = "math", **options: Any) -> Stored:
    stored = await buffer.put(group, task_name, **options)
    assert stored is not None
    return stored


async def held(buffer: ReplayBuffer[RolloutState], task_name: str = "math") -> list[int | None]:
    return numbers_of([found.item for found in await buffer.find({"task_name": task_name})])


async def bytes_of(buffer: ReplayBuffer[Any], *task_names: str) -> int:
    tasks = (await buffer.stats()).tasks
    return sum(tasks[name].bytes for name in task_names)


class CapacityContract:
    """`max_size` and `max_bytes` of one table."""

    @pytest.mark.parametrize(
        ("remover", "gone", "left"),
        [
            (Fifo(), [1, 2], [3, 4, 5]),
            (Lifo(), [4, 5], [1, 2, 3]),
            (MinHeap(), [2, 4], [1, 3, 5]),
            (MaxHeap(), [1, 5], [2, 3, 4]),
            (Staleness(), [2, 4], [1, 3, 5]),
        ],
    )
    async def test_the_remover_chooses_who_gives_way(
        self, url: str, remover: Selector, gone: list[int], left: list[int]
    ) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(remover=remover, max_size=3)}) as buffer:
            stored = [
                await put(buffer, make_group(number, steps=steps), current_train_step=10, priority=priority)
                for number, (steps, priority) in enumerate(zip(STEPS, PRIORITIES, strict=True), start=1)
            ]
            assert await held(buffer) == left
            assert [uid for each in stored for uid in each.evicted] == [stored[number - 1] for number in gone]
            assert [len(each.evicted) for each in stored] == [0, 0, 0, 1, 1]
            assert (await buffer.stats()).process["evicted_total"] == 2
            assert len(await buffer.sample(3, "math", timeout=20)) == 3

    @pytest.mark.parametrize("remover", [Uniform(), Prioritized(1.0)])
    async def test_removers_by_lot_keep_the_size(self, url: str, remover: Selector) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(remover=remover, max_size=4)}) as buffer:
            for number in range(12):
                stored = await put(buffer, make_group(number), priority=number)
                assert len(stored.evicted) == (number >= 4)
                assert await buffer.size() == min(number + 1, 4)

    async def test_priority_moves_who_gives_way(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(remover=MinHeap(), max_size=2)}) as buffer:
            first, second = [await put(buffer, make_group(number)) for number in (1, 2)]
            await buffer.update_priorities("math", {second: 0.5, first: 9.0})
            assert (await put(buffer, make_group(3))).evicted == (second,)
            assert await held(buffer) == [1, 3]

    async def test_puts_at_the_same_time_keep_the_size(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(max_size=5)}) as buffer:
            stored = await asyncio.gather(*(put(buffer, make_group(number)) for number in range(50)))
            assert await buffer.size() == 5
            gone = [uid for each in stored for uid in each.evicted]
            left = [found.uid for found in await buffer.find()]
            assert sorted([*gone, *left]) == sorted(stored)

    async def test_max_bytes_evicts_as_many_as_needed(self, url: str) -> None:
        tables = {"math": TableConfig(max_bytes=4000)}
        async with ReplayBuffer(url, item_type=bytes, tables=tables) as buffer:
            uids = [await put(buffer, [noise(number)]) for number in range(3)]
            large = await put(buffer, [noise(3, 2500)])
            assert large.evicted == tuple(uids[:2])
            assert [found.item for found in await buffer.find()] == [[noise(2)], [noise(3, 2500)]]
            assert await bytes_of(buffer, "math") <= 4000

    @pytest.mark.parametrize("on_full", ["evict", "block", "reject"])
    async def test_a_group_that_can_never_fit_is_refused(self, url: str, on_full: OnFull) -> None:
        tables = {"math": TableConfig(max_bytes=4000, on_full=on_full)}
        async with ReplayBuffer(url, item_type=bytes, tables=tables) as buffer:
            await put(buffer, [noise(1)])
            with pytest.raises(ValueError, match=r"at most max_bytes=4000: it can never fit"):
                await buffer.put([noise(2, 5000)], "math")
            assert [found.item for found in await buffer.find()] == [[noise(1)]]

    @pytest.mark.parametrize("limit", [{"max_size": 2}, {"max_bytes": 2500}])
    async def test_block_waits_for_room(self, url: str, limit: dict[str, int]) -> None:
        tables = {"math": TableConfig(on_full="block", **limit)}  # type: ignore[arg-type]
        async with ReplayBuffer(url, item_type=bytes, tables=tables) as buffer:
            uids = [await put(buffer, [noise(number)], timeout=20) for number in range(2)]
            with pytest.raises(PutTimeout, match=rf"'math' is full: 2 groups.*{next(iter(limit))}"):
                await buffer.put([noise(2)], "math", timeout=0.05)
            putting = asyncio.create_task(put(buffer, [noise(3)]))
            await asyncio.sleep(0.05)
            assert not putting.done()
            await buffer.delete(uids[:1])
            assert (await asyncio.wait_for(putting, 20)).evicted == ()
            assert [found.item for found in await buffer.find()] == [[noise(1)], [noise(3)]]

    @pytest.mark.parametrize("limit", [{"max_size": 2}, {"max_bytes": 2500}])
    async def test_reject_says_so(self, url: str, limit: dict[str, int]) -> None:
        tables = {"math": TableConfig(on_full="reject", max_times_sampled=1, **limit)}  # type: ignore[arg-type]
        async with ReplayBuffer(url, item_type=bytes, tables=tables) as buffer:
            for number in range(2):
                await put(buffer, [noise(number)])
            with pytest.raises(TableFull, match=rf"'math' is full: 2 groups.*{next(iter(limit))}"):
                await buffer.put([noise(2)], "math")
            assert await buffer.size() == 2
            await buffer.sample(1, "math")
            await put(buffer, [noise(2)])

    async def test_every_status_counts(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(max_size=2)}) as buffer:
            failed = await put(buffer, make_group(1, status=Status.FAILED))
            await put(buffer, make_group(2, status=Status.ABORTED))
            assert (await put(buffer, make_group(3))).evicted == (failed,)
            await buffer.refresh_staleness(task_stale_thresholds={"math": 5}, current_train_step=10)
            assert len((await put(buffer, make_group(4))).evicted) == 1
            assert await held(buffer) == [3, 4]

    async def test_a_replaced_key_is_no_new_group(self, url: str) -> None:
        with Table(url, "math", max_size=2, max_times_sampled=0, max_bytes=4000) as table:
            first, second = table.insert("a", noise(1)), table.insert("b", noise(2))
            again = table.insert("a", noise(3))
            assert (again, again.evicted, len(table)) == (first, (), 2)
            grown = table.insert("b", noise(4, 3000))
            assert (grown, grown.evicted, len(table)) == (second, (first,), 1)

    async def test_a_replacement_that_can_never_fit_is_refused(self, url: str) -> None:
        with Table(url, "math", max_times_sampled=0, max_bytes=4000) as table:
            table.insert("a", noise(1))
            with pytest.raises(BadArgument, match="max_bytes=4000"):
                table.insert("a", noise(2, 5000))
            [(data, _)] = table.sample(1, timeout=5) or []
            assert bytes(data) == noise(1)

    async def test_an_update_that_grows_a_group(self, url: str) -> None:
        tables = {"math": TableConfig(max_bytes=4000), "code": TableConfig(max_bytes=4000, on_full="reject")}
        async with ReplayBuffer(url, item_type=bytes, tables=tables) as buffer:
            for task_name in tables:
                for number in range(3):
                    await put(buffer, [noise(number)], task_name)
                last = (await buffer.find({"task_name": task_name}))[-1]
                last.item = [noise(9, 2500)]
                if task_name == "math":
                    assert await buffer.update([last]) == 1
                    assert [found.item for found in await buffer.find()] == [[noise(1)], [noise(9, 2500)]]
                    assert await bytes_of(buffer, "math") <= 4000
                else:
                    with pytest.raises(TableFull, match="Nothing was changed"):
                        await buffer.update([last])
                    found = await buffer.find({"task_name": "code"})
                    assert [each.item for each in found] == [[noise(number)] for number in range(3)]

    async def test_an_update_that_can_never_fit_is_refused(self, url: str) -> None:
        async with ReplayBuffer(url, item_type=bytes, tables={"math": TableConfig(max_bytes=4000)}) as buffer:
            await put(buffer, [noise(1)])
            [found] = await buffer.find()
            found.item = [noise(2, 5000)]
            with pytest.raises((BadArgument, TableFull), match="max_bytes=4000"):
                await buffer.update([found])
            assert [each.item for each in await buffer.find()] == [[noise(1)]]

    async def test_a_smaller_capacity_evicts_or_is_refused(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig()}) as buffer:
            for number in range(5):
                await put(buffer, make_group(number))
            refusing: tuple[OnFull, ...] = ("block", "reject")
            for on_full in refusing:
                with pytest.raises(TableFull, match=r"already holds more than max_size=3.*5 groups"):
                    await buffer.set_table("math", TableConfig(max_size=3, on_full=on_full))
            assert (await put(buffer, make_group(5))).evicted == ()
            await buffer.set_table("math", TableConfig(max_size=3, remover=Lifo()))
            assert await held(buffer) == [0, 1, 2]
            assert len(await buffer.sample(3, "math", timeout=20)) == 3

    async def test_a_task_that_holds_groups_already_becomes_a_table(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            for number in range(5):
                await put(buffer, make_group(number))
            await buffer.take_batch({"math": 1})
        with pytest.raises(TableFull, match="4 groups"):
            async with ReplayBuffer(url, tables={"math": TableConfig(max_size=3, on_full="reject")}):
                pass
        async with ReplayBuffer(url, tables={"math": TableConfig(max_size=3)}) as buffer:
            assert await held(buffer) == [2, 3, 4]
            assert len((await put(buffer, make_group(5))).evicted) == 1
            assert sorted(map(str, await held(buffer))) == ["3", "4", "5"]
            await buffer.take_batch({"math": 1})
            with pytest.raises(SampleTimeout, match="3 groups were asked and 2 can be sampled"):
                await buffer.sample(3, "math", timeout=0)


class RunCapacityContract:
    """`max_size` and `max_bytes` of a run as a whole."""

    async def test_the_largest_table_gives_way(self, url: str) -> None:
        async with ReplayBuffer(url, max_size=4, tables={"code": TableConfig(remover=Lifo())}) as buffer:
            for number in (1, 2, 3):
                await put(buffer, make_group(number), "math")
            await put(buffer, make_group(4), "code")
            await put(buffer, make_group(5), "code")
            assert (await held(buffer, "math"), await held(buffer, "code")) == ([2, 3], [4, 5])
            await put(buffer, make_group(6), "new")
            assert await buffer.size() == 4
            assert await held(buffer, "new") == [6]
            assert (await buffer.stats()).process["evicted_total"] == 2

    async def test_bytes_of_all_tables_count(self, url: str) -> None:
        async with ReplayBuffer(url, item_type=bytes, max_bytes=4000) as buffer:
            await put(buffer, [noise(1, 2000)], "math")
            await put(buffer, [noise(2, 900)], "code")
            assert len((await put(buffer, [noise(3, 1500)], "code")).evicted) == 1
            assert [found.item for found in await buffer.find()] == [[noise(1, 2000)], [noise(3, 1500)]]
            with pytest.raises(BadArgument, match="can never fit"):
                await buffer.put([noise(4, 5000)], "tools")

    async def test_an_update_that_grows_a_group(self, url: str) -> None:
        async with ReplayBuffer(url, item_type=bytes, max_bytes=4000) as buffer:
            await put(buffer, [noise(1)], "math")
            await put(buffer, [noise(2)], "code")
            [found] = await buffer.find({"task_name": "code"})
            found.item = [noise(3, 3500)]
            await buffer.update([found])
            assert await bytes_of(buffer, "math", "code") <= 4000

    @pytest.mark.parametrize("on_full", ["block", "reject"])
    async def test_nobody_gives_way_to_an_update_unless_evict_was_chosen(self, url: str, on_full: OnFull) -> None:
        async with ReplayBuffer(url, item_type=bytes, max_bytes=4000, on_full=on_full) as buffer:
            for number in range(3):
                await put(buffer, [noise(number)])
            found = (await buffer.find())[-1]
            found.item = [noise(9, 2500)]
            with pytest.raises(TableFull, match="max_bytes=4000"):
                await buffer.update([found])
            assert [each.item for each in await buffer.find()] == [[noise(number)] for number in range(3)]

    @pytest.mark.parametrize("on_full", ["block", "reject"])
    async def test_block_and_reject(self, url: str, on_full: OnFull) -> None:
        async with ReplayBuffer(url, max_size=2, on_full=on_full) as buffer:
            await put(buffer, make_group(1), "math")
            await put(buffer, make_group(2), "code")
            with pytest.raises((PutTimeout, TableFull), match=r"is full: 2 groups.*max_size=2"):
                await buffer.put(make_group(3), "math", timeout=0.05)
            await buffer.take_batch({"code": 1})
            await put(buffer, make_group(3), "math", timeout=20)
            assert await buffer.size() == 2

    async def test_it_can_be_set_and_lifted_later(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer, ReplayBuffer(url) as other:
            for number in range(4):
                await put(buffer, make_group(number), ("math", "code")[number % 2])
            await buffer.set_capacity(max_size=2)
            assert await other.size() == 2
            assert len((await put(other, make_group(4), "math")).evicted) == 1
            await buffer.set_capacity()
            assert (await put(other, make_group(5), "math")).evicted == ()
            assert await other.size() == 3
