"""What other replay buffers got wrong with capacities and samples, each as a test of its own on both databases."""

import asyncio
import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from sqlreplay import (
    BadArgument,
    BlockingReplayBuffer,
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritized,
    PutTimeout,
    Queue,
    ReplayBuffer,
    RolloutState,
    SampleTimeout,
    SampleToInsertRatio,
    Status,
    Stored,
    Table,
    TableConfig,
    TableFull,
    Uniform,
)
from sqlreplay.policy import Selector
from sqlreplay.table import TableInfo
from sqlreplay.testing import make_group, numbers_of


@pytest.fixture
def buffer(url: str) -> Iterator[BlockingReplayBuffer[RolloutState]]:
    with BlockingReplayBuffer(url) as opened:
        yield opened


def settled(buffer: BlockingReplayBuffer[Any], **rules: Any) -> TableConfig:
    """Give the task `math` these rules."""
    config = TableConfig(**rules)
    buffer.set_table("math", config)
    return config


def info_of(buffer: BlockingReplayBuffer[Any], task_name: str = "math") -> TableInfo:
    """Return what the database says of a table, whatever its settings are."""
    thread = buffer.unblocked.joined_thread()
    now = thread.wait(thread.store.tables.standing(buffer.unblocked.run, task_name))
    assert now is not None
    return TableInfo(
        task_name, now.rules, now.size, now.size_bytes, now.inserts, now.samples, now.deletes, now.evictions
    )


def put(buffer: BlockingReplayBuffer[RolloutState], number: int, **options: Any) -> Stored:
    task_name = options.pop("task_name", "math")
    stored = buffer.put(make_group(number), task_name, **options)
    assert stored is not None
    return stored


def held(buffer: BlockingReplayBuffer[RolloutState]) -> list[int]:
    return [found.uid for found in buffer.find()]


@pytest.mark.parametrize("remover", [Fifo(), MinHeap(), Prioritized(1.0)], ids=repr)
def test_an_insert_into_a_full_prioritized_table_goes_in_and_evicts_exactly_one(
    buffer: BlockingReplayBuffer[RolloutState], remover: Selector
) -> None:
    settled(buffer, sampler=Prioritized(0.6), remover=remover, max_size=3)
    uids = [put(buffer, number, priority=number + 1.0) for number in range(3)]
    assert all(uid.evicted == () for uid in uids)
    for number in range(3, 10):
        stored = put(buffer, number, priority=number + 1.0)
        assert len(stored.evicted) == 1
        assert set(held(buffer)) == {*uids, stored} - set(stored.evicted)
        uids = [uid for uid in (*uids, stored) if uid not in stored.evicted]
        assert len(buffer.sample(3, "math", timeout=0)) == 3
    info = info_of(buffer)
    assert (info.size, info.inserts, info.deletes, info.evictions) == (3, 10, 7, 7)


def test_a_group_may_itself_be_the_one_that_gives_way(buffer: BlockingReplayBuffer[RolloutState]) -> None:
    """As in Reverb the new one goes in before the remover looks; here it is never seen, and the caller is told."""
    settled(buffer, sampler=Prioritized(1.0), remover=MinHeap(), max_size=2)
    uids = [put(buffer, number, priority=5.0) for number in range(2)]
    stored = put(buffer, 2, priority=1.0)
    assert stored.evicted == (stored,)
    assert held(buffer) == uids


@pytest.mark.parametrize(
    ("remover", "expected"),
    [(Fifo(), [0, 1]), (Lifo(), [3, 2]), (MinHeap(), [1, 3]), (MaxHeap(), [2, 0])],
    ids=["Fifo", "Lifo", "MinHeap", "MaxHeap"],
)
def test_a_smaller_capacity_evicts_by_the_remover(
    buffer: BlockingReplayBuffer[RolloutState], remover: Selector, expected: list[int]
) -> None:
    uids = [put(buffer, number, priority=priority) for number, priority in enumerate((3.0, 1.0, 4.0, 2.0))]
    settled(buffer, remover=remover, max_size=2)
    assert held(buffer) == [uid for number, uid in enumerate(uids) if number not in expected]
    assert info_of(buffer).evictions == 2


def test_a_fifo_sampler_over_a_fifo_remover_warns_and_gives_the_oldest_every_time(
    buffer: BlockingReplayBuffer[RolloutState],
) -> None:
    with pytest.warns(UserWarning, match="same oldest groups in every"):
        settled(buffer, sampler=Fifo(), remover=Fifo(), max_size=4)
    uids = [put(buffer, number) for number in range(4)]
    for _ in range(3):
        assert [sample.info.uid for sample in buffer.sample(2, "math", timeout=0)] == uids[:2]
    put(buffer, 4)
    assert [sample.info.uid for sample in buffer.sample(2, "math", timeout=0)] == uids[1:3]


def numbers_in(samples: Any) -> list[int]:
    """Return the numbers that plain data was made with, in the order in which they came."""
    return [data["number"] for data, _ in samples]


def test_a_queue_gives_each_once_in_order_and_lets_inserts_wait(url: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = Table.queue(url, "queue", max_size=3)
    with table:
        found: list[int] = []
        for number in range(3):
            table.insert(number, {"number": number})
        with pytest.raises(PutTimeout, match=r"Queue\(size=3\)"):
            table.insert(3, {"number": 3}, timeout=0.1)
        for number in range(3, 10):
            found += numbers_in(table.sample(1, timeout=0))
            table.insert(number, {"number": number}, timeout=0)
        found += numbers_in(table.sample(3, timeout=0))
        assert found == list(range(10))
        with pytest.raises(SampleTimeout):
            table.sample(1, timeout=0)
        info = table.info
        assert (info.size, info.inserts, info.samples, info.deletes, info.evictions) == (0, 10, 10, 10, 0)


def test_a_stack_gives_each_once_the_newest_first(url: str) -> None:
    with Table.stack(url, "stack", max_size=3) as table:
        for number in range(3):
            table.insert(number, {"number": number})
        assert numbers_in(table.sample(2, timeout=0)) == [2, 1]
        table.insert(7, {"number": 7}, timeout=0)
        assert numbers_in(table.sample(2, timeout=0)) == [7, 0]


@pytest.mark.parametrize("sampler", [Uniform(), Prioritized(1.0), Lifo()], ids=repr)
def test_a_sample_of_more_than_there_are_waits_and_gives_neither_duplicates_nor_fewer(
    buffer: BlockingReplayBuffer[RolloutState], sampler: Selector
) -> None:
    settled(buffer, sampler=sampler)
    for number in range(3):
        put(buffer, number)
    before = info_of(buffer)
    with pytest.raises(SampleTimeout, match="4 groups were asked and 3 can be sampled"):
        buffer.sample(4, "math", timeout=0.3)
    assert info_of(buffer) == before
    put(buffer, 3)
    uids = [sample.info.uid for sample in buffer.sample(4, "math", timeout=0)]
    assert len(set(uids)) == len(uids) == 4


def test_a_filtered_sample_of_more_than_match_waits_too(buffer: BlockingReplayBuffer[RolloutState]) -> None:
    settled(buffer, sampler=Prioritized(1.0))
    for number in range(4):
        put(buffer, number, priority=float(number))
    before = info_of(buffer)
    with pytest.raises(SampleTimeout):
        buffer.sample(3, "math", where={"priority": {"$gte": 2}}, timeout=0.3)
    assert info_of(buffer) == before


async def test_a_sample_that_waits_goes_on_when_enough_have_come(url: str) -> None:
    async with ReplayBuffer(url, tables={"math": TableConfig()}) as buffer:
        wait = asyncio.create_task(buffer.sample(3, "math", timeout=60))
        for number in range(3):
            await asyncio.sleep(0.1)
            assert not wait.done()
            await buffer.put(make_group(number), "math")
        assert sorted(map(int, numbers_of(sample.group for sample in await wait))) == [0, 1, 2]  # type: ignore[arg-type]


def test_a_sample_of_more_than_can_ever_be_there_is_refused_at_once(buffer: BlockingReplayBuffer[RolloutState]) -> None:
    settled(buffer, max_size=3)
    with pytest.raises(BadArgument, match="at most max_size=3"):
        buffer.sample(4, "math")
    settled(buffer, rate_limiter=Queue(2))
    with pytest.raises(BadArgument, match="lets at most 2 be drawn"):
        buffer.sample(3, "math")


@pytest.mark.parametrize("asked", [2, 3, 5])
def test_groups_of_weight_0_fill_up_a_prioritized_sample_after_all_others(
    buffer: BlockingReplayBuffer[RolloutState], asked: int
) -> None:
    settled(buffer, sampler=Prioritized(0.6, beta=0.4))
    uids = [put(buffer, number, priority=3.0 if number in (1, 4) else 0.0) for number in range(6)]
    for _ in range(5):
        samples = buffer.sample(asked, "math", timeout=0)
        drawn = [sample.info.uid for sample in samples]
        assert len(set(drawn)) == asked
        assert set(drawn[:2]) == {uids[1], uids[4]}
        assert [sample.info.probability for sample in samples] == [0.5, 0.5] + [0.0] * (asked - 2)


def test_a_prioritized_table_of_zeros_is_drawn_evenly(buffer: BlockingReplayBuffer[RolloutState]) -> None:
    settled(buffer, sampler=Prioritized(1.0))
    uids = {int(put(buffer, number, priority=0.0)) for number in range(3)}
    drawn = set()
    for _ in range(40):
        [(_, info)] = buffer.sample(1, "math", timeout=0)
        assert info.probability == pytest.approx(1 / 3)
        drawn.add(info.uid)
    assert drawn == uids


def test_evicted_groups_are_told_to_the_caller_and_counted(buffer: BlockingReplayBuffer[RolloutState]) -> None:
    settled(buffer, max_size=2)
    uids = [put(buffer, number) for number in range(5)]
    assert [uid.evicted for uid in uids] == [(), (), (uids[0],), (uids[1],), (uids[2],)]
    assert held(buffer) == uids[3:]
    stats = buffer.stats()
    assert stats.process["evicted_total"] == 3
    assert stats.scalars("replay/")["replay/evicted_total"] == 3
    info = info_of(buffer)
    assert (info.size, info.inserts, info.deletes, info.evictions) == (2, 5, 3, 3)


def test_groups_that_an_insert_evicts_are_in_the_stats_of_its_buffer(
    buffer: BlockingReplayBuffer[RolloutState],
) -> None:
    table = Table(buffer, "math", max_size=2)
    evicted = [table.insert(number, make_group(number)).evicted for number in range(5)]
    assert sum(map(len, evicted)) == table.info.evictions == 3
    assert buffer.stats().process["evicted_total"] == 3


def test_a_put_into_a_full_table_that_blocks_ends_with_the_reason_and_stores_nothing(
    buffer: BlockingReplayBuffer[RolloutState],
) -> None:
    settled(buffer, max_size=2, on_full="block")
    uids = [put(buffer, number) for number in range(2)]
    before = info_of(buffer)
    with pytest.raises(PutTimeout, match=r"was not stored\. 'math' is full: 2 groups, \d+ bytes, max_size=2 groups"):
        put(buffer, 2, timeout=0.2)
    assert info_of(buffer) == before
    assert held(buffer) == uids
    assert buffer.take_batch({"math": 1})[1] == {"math": 1}
    assert put(buffer, 3, timeout=0).evicted == ()


async def test_a_put_that_waits_for_room_goes_in_when_there_is_some(url: str) -> None:
    async with ReplayBuffer(url, tables={"math": TableConfig(max_size=1, on_full="block")}) as buffer:
        await buffer.put(make_group(1), "math")
        waiting = asyncio.create_task(buffer.put(make_group(2), "math", timeout=60))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        batches, _ = await buffer.take_batch({"math": 1})
        assert numbers_of(batches["math"]) == [1]
        stored = await waiting
        assert [found.uid for found in await buffer.find()] == [stored]


async def test_a_put_that_is_cancelled_while_it_waits_is_not_stored(url: str) -> None:
    async with ReplayBuffer(url, tables={"math": TableConfig(max_size=1, on_full="block")}) as buffer:
        await buffer.put(make_group(1), "math")
        waiting = asyncio.create_task(buffer.put(make_group(2), "math"))
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await buffer.take_batch({"math": 1})
        await asyncio.sleep(0.5)
        assert await buffer.size() == 0


def test_a_put_that_the_limiter_holds_up_says_its_numbers(buffer: BlockingReplayBuffer[RolloutState]) -> None:
    settled(buffer, rate_limiter=SampleToInsertRatio(2.0, 1, 4.0))
    for number in range(3):
        put(buffer, number, timeout=0)
    before = info_of(buffer)
    with pytest.raises(PutTimeout, match=r"4 inserts \* 2 - 0 samples = 8, above 6"):
        put(buffer, 3, timeout=0.1)
    assert info_of(buffer) == before
    buffer.sample(2, "math", timeout=0)
    put(buffer, 4, timeout=0)


def test_a_put_into_a_full_table_that_rejects_raises_and_changes_nothing(
    buffer: BlockingReplayBuffer[RolloutState],
) -> None:
    settled(buffer, max_size=2, on_full="reject")
    uids = [put(buffer, number) for number in range(2)]
    before = info_of(buffer)
    with pytest.raises(TableFull, match=r"'math' is full: 2 groups, \d+ bytes, max_size=2 groups"):
        put(buffer, 2)
    assert info_of(buffer) == before
    assert held(buffer) == uids
    assert numbers_of(sample.group for sample in buffer.sample(2, "math", timeout=0))


@pytest.mark.parametrize("on_full", ["evict", "block", "reject"])
def test_a_group_larger_than_the_whole_table_is_refused_by_its_size(
    buffer: BlockingReplayBuffer[RolloutState], on_full: str
) -> None:
    settled(buffer, max_bytes=20, on_full=on_full)
    with pytest.raises(BadArgument, match=r"max_bytes=20: it can never fit"):
        put(buffer, 1)
    assert (held(buffer), info_of(buffer).inserts) == ([], 0)


def test_a_capacity_in_bytes_evicts_as_many_as_it_takes(buffer: BlockingReplayBuffer[RolloutState]) -> None:
    small = put(buffer, 1)
    size = buffer.stats().tasks["math"].bytes
    settled(buffer, max_bytes=size * 4)
    uids = [small, *(put(buffer, 1) for _ in range(3))]
    assert info_of(buffer).size_bytes == 4 * size
    noise = random.Random(1).randbytes(size).hex()
    large = buffer.put(make_group(1, response=noise, steps=(None,)), "math")
    assert large is not None
    assert large.evicted == tuple(uids[: len(large.evicted)])
    assert len(large.evicted) >= 2
    info = info_of(buffer)
    assert info.size_bytes <= 4 * size
    assert info.evictions == len(large.evicted)


@pytest.mark.parametrize("on_full", ["evict", "block", "reject"])
def test_an_insert_under_a_key_that_is_there_replaces_it_and_evicts_nobody(
    buffer: BlockingReplayBuffer[RolloutState], on_full: Any
) -> None:
    table = Table(buffer, "math", sampler=Fifo(), max_size=2, max_times_sampled=3, on_full=on_full)
    first, second = table.insert("first", make_group(1)), table.insert("second", make_group(2))
    table.sample(2, timeout=0)
    before = table.info
    again = table.insert("first", make_group(3), priority=0.5, timeout=0)
    assert (again, again.evicted) == (first, ())
    after = table.info
    assert (after.size, after.inserts, after.deletes, after.evictions) == (2, before.inserts, 0, 0)
    samples = table.sample(2, timeout=0) or []
    assert [sample.info.uid for sample in samples] == [first, second]
    assert numbers_of(sample.group for sample in samples) == [3, 2]
    assert [(sample.info.priority, sample.info.times_sampled) for sample in samples] == [(0.5, 1), (1.0, 2)]


def test_a_replaced_group_is_as_good_as_new_though_the_old_one_had_expired(
    buffer: BlockingReplayBuffer[RolloutState],
) -> None:
    table = Table(buffer, "math", max_times_sampled=0)
    uid = table.insert("key", make_group(1, steps=(1,)))
    buffer.refresh_staleness(task_stale_thresholds={"math": 2}, current_train_step=9)
    assert buffer.count("math", Status.EXPIRED) == 1
    assert table.insert("key", make_group(2, steps=(9,))) == uid
    [(group, info)] = table.sample(1, timeout=0) or []
    assert info.uid == uid
    assert [(state.group_id, state.status, state.response) for state in group] == [
        (2, Status.COMPLETED, make_group(2, steps=(9,))[0].response)
    ]


def test_a_run_that_rejects_does_not_evict_when_a_group_grows(url: str) -> None:
    """Growing is not putting, but a run that was told to reject must not lose groups to it."""
    with BlockingReplayBuffer(url) as buffer:
        uids = [put(buffer, 1, task_name=task_name) for task_name in ("math", "code", "code")]
        size = sum(task.bytes for task in buffer.stats().tasks.values())
        buffer.set_capacity(max_bytes=size, on_full="reject")
        [found] = buffer.find({"uid": uids[2]})
        found.item = make_group(1) + make_group(2)
        with pytest.raises(TableFull):
            buffer.update([found])
        assert held(buffer) == uids
        assert sum(task.bytes for task in buffer.stats().tasks.values()) == size


def test_a_run_stays_within_its_bytes_when_a_group_grows(url: str) -> None:
    with BlockingReplayBuffer(url) as buffer:
        uids = [put(buffer, 1, task_name=task_name) for task_name in ("math", "math", "code")]
        size = sum(task.bytes for task in buffer.stats().tasks.values())
        buffer.set_capacity(max_bytes=size)
        [found] = buffer.find({"uid": uids[2]})
        found.item = make_group(1) + make_group(2)
        buffer.update([found])
        assert sum(task.bytes for task in buffer.stats().tasks.values()) <= size


def test_counters_of_a_run_whose_capacity_went_and_came_back_are_not_negative(url: str) -> None:
    with BlockingReplayBuffer(url, max_size=100) as buffer:
        put(buffer, 1)
        buffer.set_capacity()
        for number in range(2, 5):
            put(buffer, number)
        buffer.set_capacity(max_size=50)
        info = info_of(buffer)
        assert info.inserts - info.deletes == info.size == 4
        assert min(info.inserts, info.deletes, info.samples) >= 0


def test_a_table_counts_from_when_it_was_made(buffer: BlockingReplayBuffer[RolloutState]) -> None:
    """A limiter that knew of draws before it was there could hold up samples for ever."""
    for number in range(2):
        put(buffer, number)
    for _ in range(5):
        buffer.sample(2, "math", timeout=0)
    settled(buffer, sampler=Fifo(), max_times_sampled=1, rate_limiter=Queue(5))
    info = info_of(buffer)
    assert (info.inserts, info.samples, info.deletes) == (2, 0, 0)
    assert numbers_of(sample.group for sample in buffer.sample(2, "math", timeout=0)) == [0, 1]


def test_a_deleted_archived_group_leaves_the_count_right_after_other_settings(
    buffer: BlockingReplayBuffer[RolloutState],
) -> None:
    settled(buffer, max_size=10)
    uids = [put(buffer, number) for number in range(3)]
    [found] = buffer.find({"uid": uids[0]})
    found.status = Status.ARCHIVED
    buffer.update([found])
    settled(buffer, max_size=9)
    buffer.delete([uids[0]])
    info = info_of(buffer)
    assert info.inserts - info.deletes == info.size == 2


def test_a_table_whose_limiter_was_warned_of_works_in_silence(url: str) -> None:
    """Warnings are errors here: one in each read of the settings would end every verb."""
    with pytest.warns(UserWarning, match="highest value"):
        limiter = SampleToInsertRatio(1.0, 5, (-10.0, 4.0))
    with BlockingReplayBuffer(url, tables={"math": TableConfig(rate_limiter=limiter)}) as buffer:
        for number in range(5):
            put(buffer, number, timeout=0)
        assert len(buffer.sample(3, "math", timeout=0)) == 3


def test_an_empty_table_says_what_a_sample_waits_for(buffer: BlockingReplayBuffer[RolloutState]) -> None:
    settled(buffer, rate_limiter=MinSize(3))
    put(buffer, 1)
    with pytest.raises(SampleTimeout, match=r"MinSize\(size=3\) waits for 3 groups and the table holds 1"):
        buffer.sample(1, "math", timeout=0)
    with pytest.raises(SampleTimeout, match="'code' holds no groups yet"):
        buffer.sample(1, "code", timeout=0)
