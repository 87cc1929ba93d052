"""Counting: by task and status, whole runs, and the numbers for a tracker."""

from enum import Enum

from sqlreplay import ReplayBuffer, RolloutState, Status
from sqlreplay.testing.factories import make_group

__all__ = ["CountContract"]


class ForeignStatus(str, Enum):
    DONE = "completed"
    OLD = "expired"


async def fill(buffer: ReplayBuffer[RolloutState]) -> None:
    for number in range(3):
        await buffer.put(make_group(number, steps=[number, number], reward={"score": 1.0}), "math")
    await buffer.put(make_group(3, status=Status.FAILED), "math")
    await buffer.put(make_group(4, status=Status.EXPIRED), "code")


class CountContract:
    """`count`, `count_statuses`, `count_where`, `is_ready`, `len`, `size` and `stats`."""

    async def test_count(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await fill(buffer)
            assert await buffer.count("math", Status.COMPLETED) == 3
            assert await buffer.count("math", "failed") == 1
            assert await buffer.count("code", ForeignStatus.OLD) == 1
            assert await buffer.count("code", Status.COMPLETED) == 0
            assert await buffer.count("unknown", Status.COMPLETED) == 0

    async def test_count_statuses_answers_with_the_keys_it_was_given(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await fill(buffer)
            statuses = [ForeignStatus.DONE, Status.FAILED, "expired"]
            counts = await buffer.count_statuses(["math", "code", "unknown"], statuses)
        assert counts == {
            "math": {ForeignStatus.DONE: 3, Status.FAILED: 1, "expired": 0},
            "code": {ForeignStatus.DONE: 0, Status.FAILED: 0, "expired": 1},
            "unknown": {ForeignStatus.DONE: 0, Status.FAILED: 0, "expired": 0},
        }
        for by_status in counts.values():
            assert [type(key) for key in by_status] == [ForeignStatus, Status, str]

    async def test_count_statuses_of_nothing(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            assert await buffer.count_statuses([], [Status.FAILED]) == {}
            assert await buffer.count_statuses(["math"], []) == {"math": {}}

    async def test_is_ready(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await fill(buffer)
            assert await buffer.is_ready({"math": 3})
            assert not await buffer.is_ready({"math": 4})
            assert not await buffer.is_ready({"math": 1, "code": 1})
            assert not await buffer.is_ready({"math": 1, "unknown": 1})
            assert await buffer.is_ready({"math": 1, "unknown": 0})
            assert await buffer.is_ready({})
            assert await buffer.is_ready({"code": 1}, group_status="expired")

    async def test_size_and_len(self, url: str) -> None:
        buffer = ReplayBuffer(url)
        try:
            assert buffer
            assert len(buffer) == 0
            await fill(buffer)
            assert await buffer.size() == len(buffer) == 5
        finally:
            await buffer.close()

    async def test_count_where(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await fill(buffer)
            assert await buffer.count_where({}) == 5
            assert await buffer.count_where({"task_name": "math", "status": Status.COMPLETED}) == 3
            assert await buffer.count_where({"oldest_step": {"$gte": 1}}) == 2

    async def test_stats(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await fill(buffer)
            await buffer.get(1, "math", Status.COMPLETED)
            await buffer.refresh_staleness(task_stale_thresholds={"math": 8}, current_train_step=10)
            stats = await buffer.stats()
        assert stats.run == "default"
        assert stats.groups == 4
        math = stats.tasks["math"]
        assert math.train_step == 10
        assert math.waiting == {"completed": 1, "expired": 1, "failed": 1}
        assert (math.groups, math.leased, math.samples, math.errors) == (3, 0, 6, 0)
        assert math.staleness_max == 8
        assert math.tokens == 24
        assert math.bytes > 0
        assert math.oldest_at is not None
        assert stats.tasks["code"].waiting == {"expired": 1}
        assert stats.process["put_total"] == 5
        assert stats.process["taken_total"] == 1
        assert stats.process["expired_total"] == 1

    async def test_scalars_are_flat_numbers(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await fill(buffer)
            scalars = (await buffer.stats()).scalars("replay/")
        assert all(name.startswith("replay/") and type(value) is float for name, value in scalars.items())
        assert scalars["replay/groups"] == 5
        assert scalars["replay/completed"] == 3
        assert scalars["replay/math/failed"] == 1
        assert scalars["replay/code/groups"] == 1

    async def test_stats_of_an_empty_run(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            stats = await buffer.stats()
            assert stats.groups == 0
            assert stats.tasks == {}
            assert stats.scalars()["groups"] == 0
            await buffer.put(make_group(), "math")
            await buffer.get(1, "math", Status.COMPLETED)
            emptied = (await buffer.stats()).tasks["math"]
            assert (emptied.groups, emptied.waiting, emptied.staleness_max) == (0, {}, 0)
