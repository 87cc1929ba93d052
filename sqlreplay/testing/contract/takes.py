"""Taking: order, several tasks, filters and a budget of tokens."""

import pytest

from sqlreplay import BadArgument, Fifo, Lifo, ReplayBuffer, RolloutState, Staleness, Status
from sqlreplay.policy import Policy
from sqlreplay.testing.factories import make_group, make_state, numbers_of

__all__ = ["TakeContract", "TokenBudgetContract"]


class TakeContract:
    """What `get` and `take_batch` hand out, and in which order."""

    @pytest.mark.parametrize(
        ("policy", "expected"),
        [
            ("fifo", [1, 2, 3, 4, 5]),
            ("lifo", [5, 4, 3, 2, 1]),
            ("staleness", [2, 4, 1, 3, 5]),
            (Fifo(), [1, 2, 3, 4, 5]),
            (Lifo(), [5, 4, 3, 2, 1]),
            (Staleness(), [2, 4, 1, 3, 5]),
        ],
    )
    async def test_order(self, url: str, policy: str | Policy, expected: list[int]) -> None:
        async with ReplayBuffer(url, policy=policy) as buffer:
            for number, steps in enumerate([[5, 5], [2, 7], [5, 9], [2, 2], [6, 6]], start=1):
                await buffer.put(make_group(number, steps=steps), "math", current_train_step=10)
            first = await buffer.get(2, "math", Status.COMPLETED)
            rest, counts = await buffer.take_batch({"math": 9})
        assert numbers_of([*first, *rest["math"]]) == expected
        assert counts == {"math": 3}

    async def test_what_is_taken_is_gone(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1), "math")
            assert numbers_of(await buffer.get(5, "math", Status.COMPLETED)) == [1]
            assert await buffer.get(5, "math", Status.COMPLETED) == []
            assert await buffer.size() == 0

    async def test_only_the_asked_task_and_status_is_taken(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1), "math")
            await buffer.put(make_group(2, status=Status.FAILED), "math")
            await buffer.put(make_group(3, status=Status.ABORTED), "math")
            await buffer.put(make_group(4), "code")
            assert numbers_of(await buffer.get(9, "math", Status.FAILED)) == [2]
            assert numbers_of(await buffer.get(9, "math", "aborted")) == [3]
            assert await buffer.get(9, "code", Status.ABORTED) == []
            assert await buffer.size() == 2

    async def test_several_tasks(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            for number in range(1, 4):
                await buffer.put(make_group(number), "math")
                await buffer.put(make_group(10 + number), "code")
            groups, counts = await buffer.take_batch({"math": 2, "code": 1, "unknown": 3, "none": 0})
            assert {name: numbers_of(taken) for name, taken in groups.items()} == {
                "math": [1, 2],
                "code": [11],
                "unknown": [],
                "none": [],
            }
            assert counts == {"math": 2, "code": 1, "unknown": 0, "none": 0}
            assert list(groups) == ["math", "code", "unknown", "none"]
            assert await buffer.take_batch({}) == ({}, {})
            assert await buffer.take_batch({"math": 0}) == ({"math": []}, {"math": 0})
            assert await buffer.get(0, "math", Status.COMPLETED) == []
            assert await buffer.size() == 3

    async def test_a_filter_goes_before_the_number(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            for number in range(1, 7):
                await buffer.put(make_group(number), "math", meta={"difficulty": number % 3})
            groups, counts = await buffer.take_batch({"math": 2}, where={"meta.difficulty": {"$gte": 1}})
            assert numbers_of(groups["math"]) == [1, 2]
            assert counts == {"math": 2}
            groups, _ = await buffer.take_batch({"math": 9}, where={"meta.difficulty": 0})
            assert numbers_of(groups["math"]) == [3, 6]
            assert await buffer.size() == 2

    async def test_many_groups_come_in_order(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            for number in range(300):
                await buffer.put([make_state(number, group_id=number)], "math")
            groups, _ = await buffer.take_batch({"math": 250})
        assert numbers_of(groups["math"]) == list(range(250))

    async def test_a_take_raises_the_train_step(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1), "math", current_train_step=4)
            await buffer.take_batch({"math": 1}, train_step=6)
            assert (await buffer.stats()).tasks["math"].train_step == 6
            await buffer.get(1, "math", Status.COMPLETED, train_step=5)
            assert (await buffer.stats()).tasks["math"].train_step == 6

    async def test_a_group_without_steps_is_ordered_by_the_staleness_it_was_put_with(self, url: str) -> None:
        async with ReplayBuffer(url, policy="staleness") as buffer:
            await buffer.put(make_group(1, steps=[6, 6]), "math", current_train_step=10)
            await buffer.put(make_group(2, seq_staleness=5), "math")
            await buffer.put(make_group(3, seq_staleness=1), "math")
            assert numbers_of(await buffer.get(3, "math", Status.COMPLETED)) == [2, 1, 3]


class TokenBudgetContract:
    """`max_tokens` ends the batch before it would hold more."""

    async def put_sized(self, buffer: ReplayBuffer[RolloutState], task_name: str, *sizes: int) -> None:
        for size in sizes:
            await buffer.put([make_state(1, group_id=size, prompt_ids=[1], response_ids=[2] * (size - 1))], task_name)

    async def test_the_budget_ends_the_batch(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await self.put_sized(buffer, "math", 10, 20, 30, 5)
            groups, counts = await buffer.take_batch({"math": 4}, max_tokens=45)
            assert numbers_of(groups["math"]) == [10, 20]
            assert counts == {"math": 2}
            groups, _ = await buffer.take_batch({"math": 4}, max_tokens=35)
            assert numbers_of(groups["math"]) == [30, 5]

    async def test_the_number_still_counts(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await self.put_sized(buffer, "math", 10, 20, 30)
            groups, _ = await buffer.take_batch({"math": 1}, max_tokens=1000)
            assert numbers_of(groups["math"]) == [10]

    async def test_one_budget_for_all_tasks_as_they_are_given(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await self.put_sized(buffer, "math", 10, 20)
            await self.put_sized(buffer, "code", 11, 12)
            groups, counts = await buffer.take_batch({"code": 5, "math": 5}, max_tokens=35)
            assert {name: numbers_of(taken) for name, taken in groups.items()} == {
                "code": [11, 12],
                "math": [10],
            }
            assert counts == {"code": 2, "math": 1}
            groups, _ = await buffer.take_batch({"math": 1, "code": 1}, max_tokens=19, group_status="failed")
            assert groups == {"math": [], "code": []}

    async def test_a_later_task_whose_first_group_is_too_large_ends_the_batch(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await self.put_sized(buffer, "math", 10)
            await self.put_sized(buffer, "code", 100)
            groups, _ = await buffer.take_batch({"math": 1, "code": 1}, max_tokens=50)
            assert {name: numbers_of(taken) for name, taken in groups.items()} == {"math": [10], "code": []}

    async def test_a_first_group_over_budget_is_an_error_that_names_it(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await self.put_sized(buffer, "math", 50, 10)
            [large] = await buffer.find({"num_tokens": 50})
            with pytest.raises(BadArgument, match=rf"Group {large.uid} .* 50 tokens.*max_tokens=40"):
                await buffer.take_batch({"math": 2}, max_tokens=40)
            assert await buffer.size() == 2
            groups, _ = await buffer.take_batch({"math": 2}, max_tokens=40, where={"num_tokens": {"$lte": 40}})
            assert numbers_of(groups["math"]) == [10]
