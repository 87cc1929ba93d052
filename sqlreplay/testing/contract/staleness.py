"""What a read says of staleness, before and after a refresh, and how that orders groups."""

import pytest

from sqlreplay import ReplayBuffer, RolloutState, Status
from sqlreplay.records import Expiry
from sqlreplay.testing.factories import make_group, make_state, numbers_of

__all__ = ["StalenessContract"]


async def refresh(buffer: ReplayBuffer[RolloutState], step: int, threshold: int = 1000) -> None:
    await buffer.refresh_staleness(task_stale_thresholds={"math": threshold}, current_train_step=step)


async def staleness_of(buffer: ReplayBuffer[RolloutState]) -> dict[int | None, tuple[int, list[int]]]:
    """Return by group number what the `StorageItem` and what its samples say, once a query has agreed."""
    read = {}
    for found in await buffer.find():
        assert await buffer.count_where({"uid": found.uid, "staleness": found.staleness}) == 1
        assert await buffer.count_where({"uid": found.uid, "staleness": {"$gt": found.staleness}}) == 0
        assert await buffer.count_where({"uid": found.uid, "staleness": {"$lt": found.staleness}}) == 0
        read[found.item[0].group_id] = (found.staleness, [state.seq_staleness for state in found.item])
    return read


class StalenessContract:
    """`seq_staleness`, `StorageItem.staleness` and queries tell the same."""

    async def test_as_put_until_a_refresh_and_then_as_of_it(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1, steps=[3, 5]), "math", current_train_step=7)
            await buffer.put(make_group(2, steps=[3, 5], seq_staleness=40), "math")
            assert await staleness_of(buffer) == {1: (3, [3, 1]), 2: (40, [40, 40])}
            await refresh(buffer, 10)
            assert await staleness_of(buffer) == {1: (6, [6, 4]), 2: (6, [6, 4])}
            await refresh(buffer, 12)
            assert await staleness_of(buffer) == {1: (8, [8, 6]), 2: (8, [8, 6])}
            taken = await buffer.get(2, "math", Status.COMPLETED)
        assert [[state.seq_staleness for state in group] for group in taken] == [[8, 6], [8, 6]]

    async def test_a_later_put_is_not_touched_by_an_earlier_refresh(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1, steps=[3, 3]), "math")
            await refresh(buffer, 10)
            await buffer.put(make_group(2, steps=[3, 3], seq_staleness=2), "math")
            assert await staleness_of(buffer) == {1: (6, [6, 6]), 2: (2, [2, 2])}

    async def test_another_put_or_take_does_not_age_what_is_there(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1, steps=[3, 3]), "math", current_train_step=5)
            await buffer.put(make_group(2, steps=[9, 9]), "math", current_train_step=10)
            await buffer.get(0, "math", Status.COMPLETED, train_step=20)
            assert await staleness_of(buffer) == {1: (1, [1, 1]), 2: (0, [0, 0])}

    async def test_only_the_statuses_looked_at_change(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1, steps=[3, 3], seq_staleness=1), "math")
            await buffer.put(make_group(2, steps=[3, 3], seq_staleness=1, status=Status.FAILED), "math")
            await refresh(buffer, 10)
            assert await staleness_of(buffer) == {1: (6, [6, 6]), 2: (1, [1, 1])}
            await buffer.refresh_staleness(
                task_stale_thresholds={"math": 2}, current_train_step=11, statuses=["failed"]
            )
            assert await staleness_of(buffer) == {1: (6, [6, 6]), 2: (7, [7, 7])}

    @pytest.mark.parametrize("expiry", ["group", "sample"])
    async def test_expired_groups_keep_the_value_at_which_they_expired(self, url: str, expiry: Expiry) -> None:
        async with ReplayBuffer(url, expiry=expiry) as buffer:
            await buffer.put(make_group(1, steps=[1, 1]), "math")
            await buffer.put(make_group(2, steps=[2, 2]), "math", current_train_step=9, stale_threshold=5)
            await refresh(buffer, 10, threshold=5)
            expected = {1: (8, [8, 8]), 2: (6, [6, 6])}
            assert await staleness_of(buffer) == expected
            for step in (15, 20):
                await refresh(buffer, step, threshold=5)
                assert await staleness_of(buffer) == expected
            taken = await buffer.get(2, "math", Status.EXPIRED)
        assert {group[0].group_id: [state.seq_staleness for state in group] for group in taken} == {
            1: [8, 8],
            2: [6, 6],
        }

    async def test_by_group_samples_keep_their_own_value(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1, steps=[1, 7]), "math")
            await refresh(buffer, 10, threshold=5)
            assert await staleness_of(buffer) == {1: (8, [8, 2])}

    async def test_by_sample_what_expired_in_part(self, url: str) -> None:
        async with ReplayBuffer(url, expiry="sample") as buffer:
            await buffer.put(make_group(1, steps=[1, 7]), "math")
            await refresh(buffer, 10, threshold=5)
            assert await staleness_of(buffer) == {1: (8, [8, 2])}
            await refresh(buffer, 11, threshold=5)
            assert await staleness_of(buffer) == {1: (8, [8, 2])}

    async def test_groups_without_steps_stand_at_zero_after_a_refresh(self, url: str) -> None:
        async with ReplayBuffer(url, policy="staleness") as buffer:
            await buffer.put(make_group(1, seq_staleness=7), "math")
            await buffer.put(make_group(2, steps=[8, 8]), "math")
            assert await staleness_of(buffer) == {1: (7, [7, 7]), 2: (0, [0, 0])}
            await refresh(buffer, 10)
            assert await staleness_of(buffer) == {1: (0, [0, 0]), 2: (1, [1, 1])}
            await buffer.put(make_group(3, steps=[100, 100]), "math")
            groups = await buffer.get(3, "math", Status.COMPLETED)
        assert numbers_of(groups) == [2, 3, 1]
        assert groups[2][0].seq_staleness == 0

    async def test_groups_without_steps_keep_their_place_until_a_refresh_looks(self, url: str) -> None:
        async with ReplayBuffer(url, policy="staleness") as buffer:
            await buffer.put(make_group(1, steps=[7, 7]), "math", current_train_step=10)
            await buffer.put(make_group(2, seq_staleness=7), "math")
            await buffer.refresh_staleness(
                task_stale_thresholds={"math": 99}, current_train_step=10, statuses=["aborted"]
            )
            assert await staleness_of(buffer) == {1: (2, [2, 2]), 2: (7, [7, 7])}
            assert numbers_of(await buffer.get(2, "math", Status.COMPLETED)) == [2, 1]

    async def test_a_group_in_which_only_some_samples_have_steps(self, url: str) -> None:
        async with ReplayBuffer(url, expiry="sample") as buffer:
            await buffer.put(make_group(1, steps=[2, None], seq_staleness=3), "math")
            await refresh(buffer, 6)
            assert await staleness_of(buffer) == {1: (3, [3, 0])}
            await refresh(buffer, 9, threshold=5)
            [found] = await buffer.find({"status": "expired"})
        assert [state.response for state in found.item] == ["", "answer 1001"]

    async def test_a_future_step_is_a_negative_staleness(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put([make_state(1, group_id=1, response_model_steps=[9, 9])], "math", current_train_step=8)
            assert await staleness_of(buffer) == {1: (-2, [-2])}
            await refresh(buffer, 9)
            assert await staleness_of(buffer) == {1: (-1, [-1])}

    @pytest.mark.parametrize("expiry", ["group", "sample"])
    async def test_expired_groups_are_ordered_by_the_oldest_step_they_keep(self, url: str, expiry: Expiry) -> None:
        async with ReplayBuffer(url, policy="staleness", expiry=expiry) as buffer:
            await buffer.put(make_group(1, steps=[3, 9]), "math")
            await buffer.put(make_group(2, steps=[2, 8]), "math")
            await buffer.put(make_group(3, steps=[1, 1]), "math")
            await refresh(buffer, 10, threshold=5)
            taken = numbers_of(await buffer.get(3, "math", Status.EXPIRED))
        assert taken == ([3, 2, 1] if expiry == "group" else [2, 1, 3])
