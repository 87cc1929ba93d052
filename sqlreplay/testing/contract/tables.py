"""Tables: any data under keys, as Reverb has them, and settings that are stored with them."""

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sqlreplay import (
    BadArgument,
    BlockingReplayBuffer,
    Fifo,
    Lifo,
    MaxHeap,
    MinSize,
    Prioritized,
    PutTimeout,
    Queue,
    ReplayBuffer,
    SampleTimeout,
    SampleToInsertRatio,
    Staleness,
    StoreClosed,
    Table,
    TableConfig,
    TableConflict,
)
from sqlreplay.testing.factories import make_group

__all__ = ["TableContract", "TableSettingsContract", "TableShutdownContract"]

PLAIN: list[Any] = [
    {"tokens": [1, 2, 3], "nested": {"a": [None, 1.5, "text"]}},
    {"status": "failed", "response_ids": [1], "reward": 2.0, "seq_staleness": 9, "response_model_steps": [1]},
    b"raw \x00 bytes",
    "text \U0001f600",
    *("", None, 7, 2.5, True),
    (1, "two", (3.0, None)),
    [],
    [True],
    [{"status": "expired"}, {"status": "aborted"}],
    {},
]


def drawn(table: Table, n: int = 1) -> list[Any]:
    samples = table.sample(n, timeout=20)
    assert samples is not None
    return [sample.group for sample in samples]


def left_running(before: list[threading.Thread]) -> list[threading.Thread]:
    new = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("sqlreplay")]
    for thread in new:
        thread.join(5)
    return [thread for thread in new if thread.is_alive()]


def in_order(place: Any, name: str = "replay") -> Table:
    return Table(place, name, Fifo(), Lifo(), max_times_sampled=0)


class TableContract:
    """`Table` over all it can stand on."""

    @pytest.mark.parametrize("data", PLAIN, ids=repr)
    def test_any_plain_data_comes_back_equal(self, url: str, data: Any) -> None:
        with Table(url, "replay") as table:
            table.insert("key", data)
            [found] = drawn(table)
            assert found == data
            assert type(found) is type(data)

    def test_arrays_come_back_equal(self, url: str) -> None:
        numpy = pytest.importorskip("numpy")
        with in_order(url) as table:
            table.insert(1, numpy.arange(6, dtype="float32").reshape(2, 3))
            table.insert(2, {"observation": numpy.ones(4), "steps": [numpy.zeros((1, 0))]})
            array, data = drawn(table, 2)
        assert numpy.array_equal(array, numpy.arange(6).reshape(2, 3))
        assert (array.dtype, data["steps"][0].shape) == ("float32", (1, 0))
        assert numpy.array_equal(data["observation"], numpy.ones(4))

    def test_groups_of_the_buffers_own_items_keep_their_type(self, url: str) -> None:
        with BlockingReplayBuffer(url) as buffer, in_order(buffer, "math") as table:
            scored = make_group(1, steps=[3, 3], reward={"score": 1.0})
            table.insert("a", scored)
            table.insert("b", {"status": "failed"})
            buffer.put(make_group(2), "math")
            assert drawn(table, 3) == [scored, {"status": "failed"}, make_group(2)]
            assert buffer.count_where({"client_key": "a", "num_samples": 2, "reward_mean": 1.0}) == 1
            assert [sample.group for sample in buffer.sample(1, "math")] == [scored]

    async def test_over_an_async_buffer_that_stays_open(self, url: str) -> None:
        async with ReplayBuffer(url, item_type=dict) as buffer:
            with in_order(buffer) as table, in_order(buffer, "other") as other:
                table.insert("a", {"n": 1})
                other.insert("a", {"n": 2})
                assert (drawn(table), drawn(other)) == ([{"n": 1}], [{"n": 2}])
            assert await buffer.count_where({"task_name": "replay"}) == 1

    def test_in_memory(self) -> None:
        with in_order("sqlite://") as table, in_order("sqlite://") as other, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(drawn, table)
            table.insert("a", 1)
            assert waiting.result(20) == [1]
            assert len(other) == 0
        with BlockingReplayBuffer("sqlite://") as buffer, Table.queue(buffer, "queue", 2) as queue:
            queue.insert("a", (1, 2))
            assert drawn(queue) == [(1, 2)]

    def test_a_key_replaces_and_may_come_again(self, url: str) -> None:
        with in_order(url) as table:
            first = table.insert("a", 1, priority=2.0)
            table.insert("b", 2)
            drawn(table, 2)
            assert table.insert("a", 3, priority=4.0) == first
            infos = [sample.info for sample in table.sample(2) or []]
            assert [(info.priority, info.times_sampled) for info in infos] == [(4.0, 1), (1.0, 2)]
            assert drawn(table, 2) == [3, 2]
            assert (len(table), table.info.inserts) == (2, 2)
            assert table.insert(5, "number") == table.insert("5", "text")
        with Table(url, "queue") as queue:
            before = queue.insert("a", 1)
            assert drawn(queue) == [1]
            assert queue.insert("a", 2) > before
            assert drawn(queue) == [2]

    @pytest.mark.parametrize("key", [None, True, 1.5, "", b"a"])
    def test_keys_that_are_no_keys(self, url: str, key: Any) -> None:
        with Table(url, "replay") as table, pytest.raises(BadArgument, match="key"):
            table.insert(key, 1)

    @pytest.mark.parametrize(("preset", "order"), [(Table.queue, [1, 2]), (Table.stack, [2, 1])])
    def test_queue_and_stack(self, url: str, preset: Callable[[str, str, int], Table], order: list[int]) -> None:
        with preset(url, "preset", 2) as table, ThreadPoolExecutor(1) as pool:
            assert (table.can_insert(), table.can_sample()) == (True, False)
            table.insert("a", 1)
            table.insert("b", 2)
            assert (table.can_insert(), table.can_sample(2)) == (False, True)
            with pytest.raises(PutTimeout):
                table.insert("c", 3, timeout=0.05)
            assert drawn(table, 2) == order
            with pytest.raises(SampleTimeout):
                table.sample(timeout=0.05)
            waiting = pool.submit(drawn, table)
            table.insert("d", 4)
            assert waiting.result(20) == [4]

    def test_info_and_priorities(self, url: str) -> None:
        with Table(url, "replay", MaxHeap(), max_size=2, max_times_sampled=2, rate_limiter=MinSize(2)) as table:
            uids = [table.insert(key, key, priority=key) for key in (1, 2, 3)]
            assert table.update_priorities({uids[1]: 9.0, uids[0]: 1.0}) == [uids[0]]
            assert [drawn(table), drawn(table)] == [[2], [2]]
            info = table.info
            assert (info.name, info.size, info.inserts, info.samples, info.deletes) == ("replay", 1, 3, 2, 2)
            assert (info.evictions, info.config, info.config.max_size) == (1, table.config, 2)
            assert info.size_bytes > 0
            assert (table.can_sample(), bool(table)) == (False, True)

    def test_leaving_a_table_leaves_no_thread(self, url: str) -> None:
        before = threading.enumerate()
        with in_order(url) as table:
            table.insert("a", 1)
        assert left_running(before) == []
        with pytest.raises(StoreClosed):
            table.sample()
        with pytest.raises(TableConflict):
            Table(url, "replay", Lifo())
        assert left_running(before) == []


class TableShutdownContract:
    """`shutdown`: nobody waits on this table any more."""

    def test_waiters_get_none_at_once(self, url: str) -> None:
        with Table.queue(url, "queue", 1) as table, ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(table.sample) for _ in range(4)]
            assert not any(sampling.done() for sampling in waiting)
            table.shutdown()
            assert [sampling.result(5) for sampling in waiting] == [None] * 4
            assert (table.is_shut_down, table.sample(timeout=20)) == (True, None)
            with pytest.raises(StoreClosed):
                table.insert("a", 1)

    def test_a_waiting_insert_ends_and_what_is_stored_stays(self, url: str) -> None:
        with Table.queue(url, "queue", 1) as table, ThreadPoolExecutor(1) as pool:
            table.insert("a", 1)
            waiting = pool.submit(table.insert, "b", 2)
            with pytest.raises(TimeoutError):
                waiting.result(0.1)
            table.shutdown()
            with pytest.raises(StoreClosed):
                waiting.result(5)
        with Table.queue(url, "queue", 1) as table:
            assert drawn(table) == [1]
            table.insert("b", 2)
            assert drawn(table) == [2]

    def test_others_that_have_it_open_end_too(self, url: str) -> None:
        with Table.queue(url, "queue", 1) as table, Table.queue(url, "queue", 1) as other:
            with ThreadPoolExecutor(1) as pool:
                sampling = pool.submit(other.sample)
                with pytest.raises(TimeoutError):
                    sampling.result(0.1)
                table.shutdown()
                assert sampling.result(10) is None
            with pytest.raises(StoreClosed):
                other.insert("a", 1, timeout=5)

    def test_a_waiting_insert_of_another_handle_ends_too(self, url: str) -> None:
        with Table.queue(url, "queue", 1) as table, Table.queue(url, "queue", 1) as other:
            table.insert("a", 1)
            with ThreadPoolExecutor(1) as pool:
                inserting = pool.submit(other.insert, "b", 2, timeout=5)
                with pytest.raises(TimeoutError):
                    inserting.result(0.1)
                table.shutdown()
                with pytest.raises(StoreClosed):
                    inserting.result(20)


class TableSettingsContract:
    """Settings are stored once, and every process agrees."""

    async def test_a_second_handle_sees_them(self, url: str) -> None:
        tables = {"math": TableConfig(sampler=MaxHeap(), max_size=2, rate_limiter=MinSize(2))}
        async with ReplayBuffer(url, tables=tables), ReplayBuffer(url) as other:
            await other.put(make_group(1), "math", priority=5.0)
            with pytest.raises(SampleTimeout, match=r"MinSize\(size=2\)"):
                await other.sample(1, "math", timeout=0)
            for number in (2, 3):
                await other.put(make_group(number), "math", priority=9.0)
            assert await other.size() == 2
            assert [sample.group for sample in await other.sample(1, "math")] == [make_group(2)]

    @pytest.mark.parametrize(
        "config",
        [
            TableConfig(),
            TableConfig(Prioritized(0.6, beta=0.4), Lifo(), 10, 3, SampleToInsertRatio(1.5, 2, (-3.0, 9.0)), 10**6),
            TableConfig(Staleness(), MaxHeap(), 5, 1, Queue(5), None, "block"),
        ],
    )
    async def test_the_same_settings_open_again(self, url: str, config: TableConfig) -> None:
        for _ in range(2):
            async with ReplayBuffer(url, tables={"math": config}, max_size=100) as buffer:
                await buffer.size()

    async def test_a_conflict_names_both_and_changes_nothing(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(max_size=2)}, max_size=50) as buffer:
            others: list[tuple[dict[str, Any], int, int]] = [
                ({"tables": {"code": TableConfig(max_size=1), "math": TableConfig(max_size=3)}}, 2, 3),
                ({"max_size": 60}, 50, 60),
            ]
            for arguments, stored, given in others:
                with pytest.raises(TableConflict, match=rf"Stored: .*max_size={stored}.*Given: .*max_size={given}"):
                    async with ReplayBuffer(url, **arguments):
                        pass
            for number in range(8):
                await buffer.put(make_group(number), ("math", "code")[number % 2])
            assert [await buffer.count_where({"task_name": name}) for name in ("math", "code")] == [2, 4]
        with pytest.raises(TableConflict):
            Table(url, "math", max_size=3)

    async def test_set_table_reaches_a_handle_that_is_open(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig()}) as buffer, ReplayBuffer(url) as other:
            for number in range(4):
                await other.put(make_group(number), "math", priority=number)
            await buffer.set_table("math", TableConfig(sampler=MaxHeap(), max_times_sampled=1))
            assert [sample.group for sample in await other.sample(1, "math")] == [make_group(3)]
            assert await other.size() == 3
            await buffer.set_table("math", TableConfig(max_size=2))
            assert await other.size() == 2

    async def test_a_restart_keeps_the_counters(self, url: str) -> None:
        with Table(url, "replay", Fifo(), Fifo(), 2, 2) as table:
            for key in (1, 2, 3):
                table.insert(key, key)
            assert drawn(table, 2) == [2, 3]
            before = table.info
        with Table(url, "replay", Fifo(), Fifo(), 2, 2) as table:
            assert table.info == before
            assert (before.inserts, before.samples, before.deletes, before.evictions) == (3, 2, 1, 1)

    async def test_a_pickled_buffer_keeps_its_tables(self, url: str) -> None:
        buffer = ReplayBuffer(url, tables={"math": TableConfig(max_size=1)}, max_size=9)
        async with pickle.loads(pickle.dumps(buffer)) as copy:  # noqa: S301 - our own bytes
            assert [len((await copy.put(make_group(number), "math")).evicted) for number in (1, 2)] == [0, 1]

    async def test_a_buffer_pickled_after_a_change_opens(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(max_size=1)}, max_size=9) as buffer:
            await buffer.set_table("math", TableConfig(max_size=2))
            await buffer.set_capacity(max_size=3)
            async with pickle.loads(pickle.dumps(buffer)) as copy:  # noqa: S301 - our own bytes
                for number in (1, 2):
                    assert len((await copy.put(make_group(number), "math")).evicted) == 0
