"""A user's own policy: any object with a `plan`."""

from dataclasses import dataclass

from sqlreplay import Plan, ReplayBuffer, Status
from sqlreplay.store import GroupColumns
from sqlreplay.testing.factories import make_group, numbers_of

__all__ = ["PolicyContract"]


@dataclass(frozen=True)
class HardestFirst:
    """By a number in meta, above a least value; groups without one are not handed out."""

    least: float

    def plan(self, columns: GroupColumns) -> Plan:
        difficulty = columns.meta("difficulty", "number")
        return Plan(order_by=(difficulty.desc(), columns.uid.asc()), where=difficulty >= self.least)


class ShortestFirst:
    def plan(self, columns: GroupColumns) -> Plan:
        return Plan(order_by=(columns.num_tokens.asc(), columns.uid.asc()))


class LeastStaleFirst:
    def plan(self, columns: GroupColumns) -> Plan:
        return Plan(order_by=(columns.staleness.asc(), columns.uid.asc()))


class PolicyContract:
    """Order and condition of a policy that does not come with the library."""

    async def test_order_and_condition_over_meta(self, url: str) -> None:
        async with ReplayBuffer(url, policy=HardestFirst(least=2)) as buffer:
            for number, meta in enumerate(
                [
                    {"difficulty": 3},
                    {"difficulty": 5.5},
                    {"difficulty": 1},
                    {"difficulty": "9"},
                    None,
                    {"difficulty": 3},
                ]
            ):
                await buffer.put(make_group(number), "math", meta=meta)
            assert await buffer.is_ready({"math": 3})
            assert not await buffer.is_ready({"math": 4})
            groups, _ = await buffer.take_batch({"math": 9}, where={"uid": {"$gt": 0}})
            assert numbers_of(groups["math"]) == [1, 0, 5]
            assert await buffer.count("math", Status.COMPLETED) == 3

    async def test_the_callers_filter_comes_on_top(self, url: str) -> None:
        async with ReplayBuffer(url, policy=HardestFirst(least=2)) as buffer:
            for number in range(5):
                await buffer.put(make_group(number), "math", meta={"difficulty": number}, priority=number % 2)
            groups, _ = await buffer.take_batch({"math": 9}, where={"priority": 0})
        assert numbers_of(groups["math"]) == [4, 2]

    async def test_order_over_columns(self, url: str) -> None:
        async with ReplayBuffer(url, policy=ShortestFirst()) as buffer:
            for number, length in enumerate([30, 10, 20, 10]):
                await buffer.put(make_group(number, response_ids=[1] * length), "math")
            assert numbers_of(await buffer.get(3, "math", Status.COMPLETED)) == [1, 3, 2]
            groups, _ = await buffer.take_batch({"math": 3}, max_tokens=100)
            assert numbers_of(groups["math"]) == [0]

    async def test_order_over_staleness(self, url: str) -> None:
        async with ReplayBuffer(url, policy=LeastStaleFirst()) as buffer:
            for number, step in enumerate([3, 9, 6]):
                await buffer.put(make_group(number, steps=[step, step]), "math")
            await buffer.refresh_staleness(task_stale_thresholds={"math": 99}, current_train_step=10)
            assert numbers_of(await buffer.get(3, "math", Status.COMPLETED)) == [1, 2, 0]
