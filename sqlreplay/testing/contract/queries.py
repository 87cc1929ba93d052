"""Reading by query: conditions, orders and pages."""

from typing import Any

import pytest

from sqlreplay import BadArgument, QueryError, ReplayBuffer, RolloutState, Status
from sqlreplay.testing.factories import make_group, make_state, numbers_of

__all__ = ["FindContract"]


async def numbers(buffer: ReplayBuffer[RolloutState], where: Any = None, **options: Any) -> list[int | None]:
    return numbers_of([found.item for found in await buffer.find(where, **options)])


class FindContract:
    """`find` and its query language, over columns, staleness and meta."""

    async def test_what_a_found_group_tells(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            uid = await buffer.put(make_group(1, status=Status.FAILED), "math")
            [found] = await buffer.find()
            assert await buffer.size() == 1
        assert found.item == make_group(1, status=Status.FAILED)
        assert found.uid == found.timestamp_id == uid
        assert (found.task_name, found.status, found.staleness) == ("math", Status.FAILED, 0)

    @pytest.mark.parametrize(
        ("where", "expected"),
        [
            (None, [1, 2, 3, 4]),
            ({}, [1, 2, 3, 4]),
            ({"task_name": "code"}, [4]),
            ({"status": Status.FAILED}, [3]),
            ({"status": {"$in": ["failed", "completed"]}, "task_name": "math"}, [1, 2, 3]),
            ({"priority": {"$gt": 1.0}}, [2, 3]),
            ({"priority": {"$between": [2, 3]}}, [2, 3]),
            ({"num_samples": {"$lt": 3}}, [1, 2, 3, 4]),
            ({"num_tokens": {"$ne": 8}}, []),
            ({"staleness": {"$gte": 5}}, [1, 2]),
            ({"oldest_step": {"$lte": 3}}, [1, 2]),
            ({"$not": {"oldest_step": {"$gte": -1e300}}}, [3, 4]),
            ({"oldest_step": {"$ne": 2}}, [1, 3, 4]),
            ({"meta.source": "web"}, [1]),
            ({"meta.source": {"$ne": "web"}}, [2, 3, 4]),
            ({"meta.source": {"$not_in": ["web"]}}, [2, 3, 4]),
            ({"meta.level": {"$gte": 2}}, [2]),
            ({"meta.level": "2"}, [3]),
            ({"meta.flag": True}, [1]),
            ({"meta.flag": 1}, [2]),
            ({"$or": [{"meta.level": 1}, {"task_name": "code"}]}, [1, 4]),
            ({"$and": []}, [1, 2, 3, 4]),
            ({"$or": []}, []),
            ({"$not": {"meta.level": {"$lt": 5}}}, [3, 4]),
        ],
    )
    async def test_where(self, url: str, where: Any, expected: list[int]) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(
                make_group(1, steps=[1, 1]),
                "math",
                current_train_step=9,
                meta={"source": "web", "level": 1, "flag": True},
            )
            await buffer.put(
                make_group(2, steps=[2, 2]),
                "math",
                current_train_step=9,
                priority=2,
                meta={"source": "book", "level": 2.5, "flag": 1},
            )
            await buffer.put(make_group(3, status=Status.FAILED), "math", priority=3, meta={"level": "2"})
            await buffer.put(make_group(4), "code", priority=0)
            assert await numbers(buffer, where) == expected
            assert await buffer.count_where(where or {}) == len(expected)

    @pytest.mark.parametrize(
        "where",
        [
            {"prority": 1},
            {"priority": {"$gte": "high"}},
            {"priority": {"$bigger": 1}},
            {"priority": None},
            {"priority": float("nan")},
            {"uid": 2**63},
            {"task_name": "a\x00b"},
            {"meta.source": "\ud800"},
            ["priority"],
        ],
    )
    async def test_what_no_query_can_mean_is_refused(self, url: str, where: Any) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1), "math")
            with pytest.raises(QueryError):
                await buffer.find(where)
            with pytest.raises(QueryError):
                await buffer.take_batch({"math": 1}, where=where)
            assert await buffer.size() == 1

    async def test_the_closest_spelling_is_named(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            with pytest.raises(QueryError, match="priority"):
                await buffer.find({"prority": 1})

    @pytest.mark.parametrize(
        ("order_by", "expected"),
        [
            (None, [1, 2, 3, 4, 5]),
            ("uid", [1, 2, 3, 4, 5]),
            ("-uid", [5, 4, 3, 2, 1]),
            ("priority", [2, 4, 1, 3, 5]),
            ("-priority", [5, 1, 3, 2, 4]),
            ("reward_mean", [5, 1, 4, 2, 3]),
            ("-reward_mean", [4, 1, 5, 2, 3]),
            ("task_name", [2, 4, 1, 3, 5]),
        ],
    )
    async def test_order_and_pages(self, url: str, order_by: str | None, expected: list[int]) -> None:
        async with ReplayBuffer(url) as buffer:
            for number, priority, reward in (
                (1, 2.0, 0.5),
                (2, 1.0, None),
                (3, 2.0, None),
                (4, 1.0, 0.75),
                (5, 3.0, 0.25),
            ):
                score = None if reward is None else {"score": reward}
                task_name = "math" if number % 2 else "code"
                await buffer.put([make_state(1, group_id=number, reward=score)], task_name, priority=priority)
            assert await numbers(buffer, order_by=order_by) == expected
            assert await numbers(buffer, order_by=order_by, limit=3) == expected[:3]
            assert await numbers(buffer, order_by=order_by, limit=0) == []
            for page_size in (1, 2):
                paged: list[int | None] = []
                after = None
                while page := await buffer.find(order_by=order_by, limit=page_size, after=after):
                    paged += numbers_of([found.item for found in page])
                    after = page[-1].uid
                assert paged == expected

    async def test_pages_go_on_from_a_group_that_is_gone(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            uids = [await buffer.put(make_group(number), "math") for number in range(4)]
            assert uids[1] is not None
            await buffer.delete([uids[1]])
            assert await numbers(buffer, after=uids[1]) == [2, 3]
            with pytest.raises(BadArgument, match="is gone"):
                await buffer.find(order_by="priority", after=uids[1])

    async def test_an_unknown_order_is_refused(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            with pytest.raises(BadArgument, match="speed"):
                await buffer.find(order_by="speed")

    async def test_values_are_bound(self, url: str) -> None:
        spoiled = "'; DROP TABLE sqlreplay_groups; --"
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1), spoiled, meta={"name": spoiled, "it's": 1})
            assert await numbers(buffer, {"task_name": spoiled, "meta.name": spoiled}) == [1]
            assert await buffer.count(spoiled, "completed") == 1
