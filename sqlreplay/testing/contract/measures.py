"""What is measured of a group, priorities that follow from it, and batches that mix fresh groups with replay."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from sqlreplay import (
    BadArgument,
    Fifo,
    GroupMeasures,
    InvalidGroup,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    ReplayBuffer,
    RolloutState,
    Sample,
    SampleTimeout,
    TableConfig,
    Uniform,
)
from sqlreplay.policy import Selector
from sqlreplay.testing.factories import make_group, make_state, numbers_of

__all__ = ["MeasuresContract", "MixedSampleContract", "PriorityContract"]

IN_ORDER = TableConfig(sampler=Fifo(), remover=Lifo())
MANY = 10_000


def numbers_in(samples: Sequence[Sample[list[RolloutState]]]) -> list[int | None]:
    return numbers_of([sample.group for sample in samples])


def scored(number: int, *scores: Any) -> list[RolloutState]:
    """Build a group whose samples have these rewards."""
    return [make_state(index, group_id=number, reward=score) for index, score in enumerate(scores)]


async def put_numbered(buffer: ReplayBuffer[RolloutState], *numbers: int, **options: Any) -> list[int]:
    return [int(await buffer.put(make_group(number), "math", **options) or 0) for number in numbers]


class PriorityContract:
    """`update_priorities`, and what `put` takes as a priority."""

    async def test_ten_thousand_in_one_call(self, url: str) -> None:
        async with ReplayBuffer(url, item_type=bytes, tables={"math": TableConfig(sampler=MaxHeap())}) as buffer:
            stored = await asyncio.gather(*(buffer.put([b"raw"], "math") for _ in range(MANY)))
            uids = [int(uid) for uid in stored if uid is not None]
            assert await buffer.update_priorities("math", {uid: uid / 4 for uid in uids}) == []
            assert await buffer.count_where({"priority": 1.0}) <= 1
            drawn = [sample.info for sample in await buffer.sample(100, "math")]
            assert [info.uid for info in drawn] == sorted(uids, reverse=True)[:100]
            assert [info.priority for info in drawn] == [info.uid / 4 for info in drawn]

    async def test_unknown_uids_are_returned(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(sampler=MaxHeap())}) as buffer:
            first, second = await put_numbered(buffer, 1, 2)
            other = int(await buffer.put(make_group(3), "code") or 0)
            await buffer.delete([first])
            changes = {10**12: 1.0, other: 7.0, first: 2.0, second: 3.0}
            assert await buffer.update_priorities("math", changes) == [first, other, 10**12]
            assert await buffer.update_priorities("unknown", {second: 9.0, first: 9.0}) == [first, second]
            assert await buffer.update_priorities("math", {}) == []
            assert await buffer.count_where({"uid": second, "priority": 3.0}) == 1
            assert await buffer.count_where({"uid": other, "priority": 1.0}) == 1

    @pytest.mark.parametrize("bad", [-1.0, -0.001, math.nan, math.inf, True, "1", None, [1.0]])
    async def test_a_bad_priority_is_refused_before_anything_is_written(self, url: str, bad: Any) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(sampler=MaxHeap())}) as buffer:
            first, second = await put_numbered(buffer, 1, 2)
            with pytest.raises(ValueError, match=rf"uid {second}: .*expected.*Nothing was changed"):
                await buffer.update_priorities("math", {first: 0.5, second: bad})
            assert await buffer.count_where({"priority": 1.0}) == 2
            with pytest.raises(BadArgument):
                await buffer.put(make_group(3), "math", priority=bad)
            with pytest.raises(BadArgument):
                await buffer.put(make_group(3), "math", priority=lambda _: bad)
            assert await buffer.size() == 2

    @pytest.mark.parametrize("bad", [{"1": 1.0}, {True: 1.0}, {1.5: 1.0}, [(1, 1.0)], None])
    async def test_bad_uids_are_refused(self, url: str, bad: Any) -> None:
        async with ReplayBuffer(url) as buffer:
            with pytest.raises(BadArgument, match="expected"):
                await buffer.update_priorities("math", bad)

    @pytest.mark.parametrize(("sampler", "expected"), [(MaxHeap(), [3, 1, 2]), (MinHeap(), [2, 1, 3])])
    async def test_the_order_follows(self, url: str, sampler: Selector, expected: list[int]) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(sampler=sampler)}) as buffer:
            first, second, third = await put_numbered(buffer, 1, 2, 3)
            assert numbers_in(await buffer.sample(3, "math")) == [1, 2, 3]
            await buffer.update_priorities("math", {third: 2.0, second: 0.0})
            samples = await buffer.sample(3, "math")
            assert numbers_in(samples) == expected
            assert {sample.info.uid: sample.info.priority for sample in samples} == {first: 1, second: 0, third: 2}

    async def test_a_task_that_is_no_table(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            first, second = await put_numbered(buffer, 1, 2)
            assert await buffer.update_priorities("math", {second: 0.25, 10**12: 1.0}) == [10**12]
            found = await buffer.find(order_by="priority")
            assert [item.uid for item in found] == [second, first]
            await buffer.set_table("math", TableConfig(sampler=MinHeap()))
            assert numbers_in(await buffer.sample(2, "math")) == [2, 1]


class MeasuresContract:
    """Columns that samples decide, or the caller of `put`."""

    @pytest.mark.parametrize(
        ("rewards", "mean", "deviation", "solved"),
        [
            ([{"score": 1.0}, {"score": 0.0}], 0.5, 0.5, 0.5),
            ([{"score": 1, "length": 7}, {"score": 1}, {"score": 1}], 1.0, 0.0, 1.0),
            ([{"score": 0.5}, {"score": -0.5}, {"other": 1}], 0.0, 0.5, 0.0),
        ],
    )
    async def test_scores_of_rollout_states(
        self, url: str, rewards: list[Any], mean: float, deviation: float, solved: float
    ) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(scored(1, *rewards), "math")
            expected = {"reward_mean": mean, "reward_std": deviation, "solve_rate": solved}
            assert await buffer.count_where(expected) == 1
            assert await buffer.count_where({"num_samples": len(rewards), "num_tokens": 4 * len(rewards)}) == 1

    async def test_scores_that_are_plain_numbers(self, url: str) -> None:
        async with ReplayBuffer(url, item_type=dict) as buffer:
            group: list[dict[str, Any]] = [
                {"prompt_ids": [1, 2], "response_ids": [3], "reward": 1.0},
                {"tokens": [1] * 5, "reward": 0},
                {"num_tokens": 9, "reward": 0.5},
            ]
            await buffer.put(group, "math")
            await buffer.put([{"text": "no reward"}], "math")
            expected = {"reward_mean": 0.5, "num_samples": 3, "num_tokens": 17, "solve_rate": {"$gt": 0.33}}
            assert await buffer.count_where(expected) == 1
            assert await buffer.count_where({"reward_std": {"$gt": 0.4, "$lt": 0.41}}) == 1
            for measure in ("reward_mean", "reward_std", "solve_rate"):
                assert await buffer.count_where({"$not": {measure: {"$gte": -1e308}}}) == 1

    async def test_the_caller_may_give_the_numbers(self, url: str) -> None:
        given = {"num_samples": 8, "num_tokens": 512, "reward_mean": -1.5, "reward_std": 0.25, "solve_rate": 0.75}
        async with ReplayBuffer(url, item_type=bytes) as buffer:
            await buffer.put([b"raw"], "math", numbers=given)
            assert await buffer.count_where(given) == 1
            taken, _ = await buffer.take_batch({"math": 2}, max_tokens=600)
            assert taken == {"math": [[b"raw"]]}

    @pytest.mark.parametrize("bad", [{"length": 1}, {"num_tokens": -1}, {"num_tokens": 1.5}, {"reward_std": "1"}, [1]])
    async def test_bad_numbers_are_refused(self, url: str, bad: Any) -> None:
        async with ReplayBuffer(url) as buffer:
            with pytest.raises(BadArgument, match="expected"):
                await buffer.put(make_group(1), "math", numbers=bad)
            assert await buffer.size() == 0

    async def test_only_groups_with_a_gradient_are_taken(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"code": IN_ORDER}) as buffer:
            for task_name in ("math", "code"):
                await buffer.put(scored(1, {"score": 1}, {"score": 1}), task_name)
                await buffer.put(scored(2, {"score": 1}, {"score": 0}), task_name)
                await buffer.put(scored(3, None, None), task_name)
                await buffer.put(scored(4, {"score": 0.25}, {"score": 0.5}), task_name)
            taken, counts = await buffer.take_batch({"math": 4}, where={"reward_std": {"$gt": 0}})
            assert numbers_of(taken["math"]) == [2, 4]
            assert counts == {"math": 2}
            samples = await buffer.sample(2, "code", where={"reward_std": {"$gt": 0}})
            assert numbers_in(samples) == [2, 4]

    async def test_a_priority_named_after_a_measure_or_computed(self, url: str) -> None:
        seen: list[GroupMeasures] = []

        def length(measures: GroupMeasures) -> float:
            seen.append(measures)
            return measures.num_tokens / 2

        async with ReplayBuffer(url, tables={"math": TableConfig(sampler=MaxHeap())}) as buffer:
            await buffer.put(scored(1, {"score": 1}, {"score": 0}), "math", priority="reward_std")
            await buffer.put(scored(2, {"score": 1}, {"score": 1}), "math", priority="reward_std")
            await buffer.put(scored(3, {"score": 1}, {"score": 0}), "math", priority=length)
            await buffer.put(make_group(4), "math", priority="reward_std", numbers={"reward_std": 2.0})
            await buffer.put(make_group(5), "math", priority=length, numbers={"num_tokens": 1000})
            drawn = [(sample.group[0].group_id, sample.info.priority) for sample in await buffer.sample(5, "math")]
        assert drawn == [(5, 500.0), (3, 4.0), (4, 2.0), (1, 0.5), (2, 0.0)]
        assert seen == [GroupMeasures(2, 8, 0.5, 0.5, 0.5, 0), GroupMeasures(2, 1000, None, None, None, 0)]

    async def test_a_priority_of_rewards_that_are_not_there(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            with pytest.raises(InvalidGroup, match=r"no sample has a reward.*numbers=\{'reward_std': ...\}"):
                await buffer.put(make_group(1), "math", priority="reward_std")
            with pytest.raises(BadArgument, match=r"'loss' is no measure.*reward_std"):
                await buffer.put(make_group(1), "math", priority="loss")
            assert await buffer.size() == 0


class MixedSampleContract:
    """`sample_mixed`: the oldest that were never drawn, and replay."""

    @pytest.mark.parametrize(
        ("fresh_ratio", "expected"), [(0, [6, 5, 4, 3]), (0.5, [1, 2, 6, 5]), (0.25, [1, 6, 5, 4]), (1, [1, 2, 3, 4])]
    )
    async def test_part_fresh_part_replay(self, url: str, fresh_ratio: float, expected: list[int]) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(sampler=Lifo())}) as buffer:
            await put_numbered(buffer, 1, 2, 3, 4, 5, 6)
            samples = await buffer.sample_mixed(4, "math", fresh_ratio=fresh_ratio)
            assert numbers_in(samples) == expected
            assert await buffer.count_where({"times_sampled": 1}) == 4
            assert await buffer.size() == 6

    async def test_fresh_is_what_was_never_drawn(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(sampler=Lifo())}) as buffer:
            await put_numbered(buffer, 1, 2, 3, 4)
            assert numbers_in(await buffer.sample(1, "math", where={"uid": {"$gt": 0}})) == [4]
            assert numbers_in(await buffer.sample_mixed(2, "math")) == [1, 4]
            assert numbers_in(await buffer.sample_mixed(2, "math")) == [2, 4]
            assert numbers_in(await buffer.sample_mixed(4, "math", fresh_ratio=0.25)) == [3, 4, 2, 1]

    @pytest.mark.parametrize("sampler", [Uniform(), Prioritized(1.0), MinHeap()])
    async def test_no_group_twice(self, url: str, sampler: Selector) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(sampler=sampler)}) as buffer:
            await put_numbered(buffer, *range(5))
            for _ in range(3):
                await buffer.sample(5, "math")
                fresh = await put_numbered(buffer, 5, 6, 7, 8, 9)
                drawn = [sample.info.uid for sample in await buffer.sample_mixed(10, "math")]
                assert drawn[:5] == fresh
                assert len(set(drawn)) == 10
                await buffer.delete(fresh)

    async def test_it_waits_for_fresh_groups(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": IN_ORDER}) as buffer:
            await put_numbered(buffer, 1, 2, 3)
            await buffer.sample(3, "math")
            with pytest.raises(SampleTimeout, match=r"1 groups of 'math' that were never drawn were asked and 0 are"):
                await buffer.sample_mixed(2, "math", timeout=0.05)
            assert len(await buffer.sample_mixed(2, "math", fresh_ratio=0)) == 2
            sampling = asyncio.create_task(buffer.sample_mixed(2, "math"))
            await asyncio.sleep(0.05)
            assert not sampling.done()
            await put_numbered(buffer, 4)
            assert numbers_in(await asyncio.wait_for(sampling, 20)) == [4, 1]

    async def test_with_a_filter(self, url: str) -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(sampler=Lifo())}) as buffer:
            for number in range(1, 7):
                await buffer.put(make_group(number), "math", meta={"odd": number % 2})
            assert numbers_in(await buffer.sample_mixed(2, "math", where={"meta.odd": 1})) == [1, 5]

    @pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan, "half", True, None])
    async def test_a_bad_ratio_is_refused(self, url: str, bad: Any) -> None:
        async with ReplayBuffer(url, tables={"math": IN_ORDER}) as buffer:
            with pytest.raises(BadArgument, match="fresh_ratio"):
                await buffer.sample_mixed(1, "math", fresh_ratio=bad, timeout=0)
