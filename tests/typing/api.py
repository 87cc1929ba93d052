"""A user's file: mypy strict must accept every line as it stands."""

from dataclasses import dataclass
from typing import assert_type

from sqlreplay import (
    BlockingReplayBuffer,
    GroupMeasures,
    MinSize,
    Plan,
    Prioritized,
    ReplayBuffer,
    RolloutState,
    Sample,
    SampleInfo,
    SampleToInsertRatio,
    Staleness,
    Status,
    StorageItem,
    Stored,
    Table,
    TableConfig,
    TableInfo,
)
from sqlreplay.insights import TaskStats
from sqlreplay.store import GroupColumns


@dataclass
class Answer:
    text: str


class ShortestFirst:
    def plan(self, columns: GroupColumns) -> Plan:
        return Plan(order_by=(columns.num_tokens.asc(), columns.uid.asc()))


async def asynchronous(group: list[RolloutState]) -> None:
    async with ReplayBuffer("sqlite:///replay.db", policy="staleness") as buffer:
        assert_type(await buffer.put(group, "math", model_step=3), Stored | None)
        batches, counts = await buffer.take_batch({"math": 64}, timeout=1.0)
        assert_type(batches, dict[str, list[list[RolloutState]]])
        assert_type(counts, dict[str, int])
        assert_type(await buffer.find({"uid": 1}), list[StorageItem[RolloutState]])


def blocking() -> None:
    with BlockingReplayBuffer("sqlite:///replay.db", policy=ShortestFirst(), item_type=Answer) as buffer:
        buffer.put([Answer("a")], "math")
        assert_type(buffer.get(1, "math", Status.COMPLETED), list[list[Answer]])
        assert_type(buffer.sample(1, "math", timeout=1.0), list[Sample[list[Answer]]])
        assert_type(buffer.update_priorities("math", {1: 0.5}), list[int])


def hardest(measures: GroupMeasures) -> float:
    return 1.0 - (measures.solve_rate or 0.0)


async def sampling(group: list[RolloutState]) -> None:
    math = TableConfig(sampler=Prioritized(0.6, beta=0.4), remover=Staleness(), max_size=1000, rate_limiter=MinSize(2))
    async with ReplayBuffer("sqlite:///replay.db", tables={"math": math}, max_bytes=2**30, seed=7) as buffer:
        stored = await buffer.put(group, "math", priority="reward_std", numbers={"reward_std": 0.5}, timeout=1.0)
        assert_type(stored, Stored | None)
        if stored is not None:
            assert_type(stored.evicted, tuple[int, ...])
        await buffer.put(group, "math", priority=hardest)
        await buffer.put(group, "math", priority=lambda measures: measures.reward_std or 0.0)
        samples = await buffer.sample(2, "math", where={"staleness": {"$lt": 4}}, timeout=1.0)
        assert_type(samples, list[Sample[list[RolloutState]]])
        for states, info in samples:
            assert_type(states, list[RolloutState])
            assert_type(info, SampleInfo)
            assert_type(info.weight, float)
        assert_type(await buffer.sample_mixed(2, "math", fresh_ratio=0.5), list[Sample[list[RolloutState]]])
        assert_type(await buffer.update_priorities("math", {info.uid: 0.1 for _, info in samples}), list[int])
        await buffer.set_table("math", TableConfig(on_full="block", max_size=10))
        await buffer.set_capacity(max_size=10_000, on_full="reject")
        assert_type((await buffer.stats()).tasks["math"], TaskStats)


def reverb(buffer: ReplayBuffer[RolloutState]) -> None:
    ratio = SampleToInsertRatio(samples_per_insert=2.0, min_size_to_sample=4, error_buffer=8.0)
    with Table("sqlite:///replay.db", "replay", sampler=Prioritized(0.8), rate_limiter=ratio) as table:
        assert_type(table.insert("episode", {"tokens": [1, 2]}, priority=0.5, timeout=1.0), Stored)
        drawn = table.sample(4, timeout=1.0)
        for data, info in drawn or []:
            print(data, info.probability, info.table_size, info.times_sampled)
        assert_type(table.info, TableInfo)
        assert_type(table.can_sample(), bool)
    assert_type(Table.queue(buffer, "queue", 8), Table)
    assert_type(Table.stack(buffer, "stack", 8), Table)
