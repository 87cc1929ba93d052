"""Stored bytes that do not read back: one bad row neither loses a batch nor blocks the queue."""

from collections.abc import Awaitable, Callable

import pytest

from sqlreplay import PayloadDamaged, ReplayBuffer, RolloutState, Status
from sqlreplay.records import Expiry
from sqlreplay.testing.factories import make_group, numbers_of

__all__ = ["DamageContract"]

Damage = Callable[[int], Awaitable[None]]


async def put_numbered(buffer: ReplayBuffer[RolloutState], count: int) -> list[int]:
    uids = [await buffer.put(make_group(number, steps=[1, 9]), "math") for number in range(count)]
    return [uid for uid in uids if uid is not None]


class DamageContract:
    """Needs a fixture `damage`, an async function that spoils the stored bytes of a group by its uid."""

    async def test_a_take_sets_it_aside_and_the_next_takes_its_place(self, url: str, damage: Damage) -> None:
        async with ReplayBuffer(url) as buffer:
            uids = await put_numbered(buffer, 4)
            await damage(uids[1])
            groups, counts = await buffer.take_batch({"math": 3})
            assert numbers_of(groups["math"]) == [0, 2, 3]
            assert counts == {"math": 3}
            assert await buffer.count("math", Status.FAILED) == 1
            assert await buffer.count_where({"uid": uids[1], "error": {"$gte": f"Group {uids[1]}"}}) == 1
            stats = await buffer.stats()
            assert stats.tasks["math"].errors == 1
            assert stats.process["set_aside_total"] == 1

    async def test_what_was_set_aside_is_not_handed_out_again(self, url: str, damage: Damage) -> None:
        async with ReplayBuffer(url) as buffer:
            uids = await put_numbered(buffer, 2)
            await damage(uids[0])
            assert numbers_of(await buffer.get(9, "math", Status.COMPLETED)) == [1]
            assert await buffer.get(9, "math", Status.FAILED) == []
            assert await buffer.delete(uids) == 1
            assert await buffer.size() == 0

    async def test_several_in_a_row_and_nothing_left(self, url: str, damage: Damage) -> None:
        async with ReplayBuffer(url) as buffer:
            uids = await put_numbered(buffer, 5)
            for uid in (uids[0], uids[1], uids[2], uids[4]):
                await damage(uid)
            groups, counts = await buffer.take_batch({"math": 2, "code": 1})
            assert numbers_of(groups["math"]) == [3]
            assert counts == {"math": 1, "code": 0}
            assert await buffer.count("math", Status.FAILED) == 4

    async def test_find_names_the_group(self, url: str, damage: Damage) -> None:
        async with ReplayBuffer(url) as buffer:
            uids = await put_numbered(buffer, 3)
            await damage(uids[1])
            with pytest.raises(PayloadDamaged, match=str(uids[1])) as caught:
                await buffer.find({"uid": uids[1]})
            assert caught.value.uid == uids[1]
            assert numbers_of([found.item for found in await buffer.find({"uid": {"$ne": uids[1]}})]) == [0, 2]

    @pytest.mark.parametrize("expiry", ["group", "sample"])
    async def test_a_refresh_gets_past_it(self, url: str, damage: Damage, expiry: Expiry) -> None:
        async with ReplayBuffer(url, expiry=expiry) as buffer:
            uids = await put_numbered(buffer, 3)
            await damage(uids[0])
            for step in (10, 11):
                await buffer.refresh_staleness(
                    task_stale_thresholds={"math": 1000},
                    task_token_stale_thresholds={"math": 5},
                    current_train_step=step,
                )
                await buffer.refresh_staleness(task_stale_thresholds={"math": 5}, current_train_step=step)
            assert numbers_of(await buffer.get(9, "math", Status.EXPIRED)) == [1, 2]
            assert await buffer.get(9, "math", Status.COMPLETED) == []
            assert await buffer.count("math", Status.FAILED) == await buffer.size() == 1
