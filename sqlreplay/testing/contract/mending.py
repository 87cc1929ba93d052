"""Mending by hand: `delete` and `update`."""

import pytest

from sqlreplay import BadArgument, InvalidGroup, ReplayBuffer, Status
from sqlreplay.testing.factories import make_group, make_state, numbers_of

__all__ = ["MendingContract"]


class MendingContract:
    """Changes to groups that are there, by uid."""

    async def test_delete(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            uids = [await buffer.put(make_group(number), "math") for number in range(4)]
            assert uids[0] is not None
            assert uids[2] is not None
            assert await buffer.delete([uids[0], uids[2], 10**12]) == 2
            assert await buffer.delete([uids[0]]) == 0
            assert await buffer.delete([]) == 0
            assert numbers_of(await buffer.get(9, "math", Status.COMPLETED)) == [1, 3]

    async def test_delete_of_very_many(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            uid = await buffer.put(make_group(1), "math")
            kept = await buffer.put(make_group(2), "math")
            assert uid is not None
            assert kept is not None
            wanted = [uid, *range(kept + 1, kept + 40_000)]
            assert await buffer.delete(wanted) == 1
            assert await buffer.size() == 1

    async def test_update_keeps_uid_and_place(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            for number in range(3):
                await buffer.put(make_group(number), "math", priority=number, meta={"number": number})
            [found] = await buffer.find({"meta.number": 0})
            found.item = [make_state(9, group_id=99, reward={"score": 0.5})]
            assert await buffer.update([found]) == 1
            [changed] = await buffer.find({"uid": found.uid})
            assert changed.item == found.item
            assert await buffer.count_where({"meta.number": 0, "num_samples": 1, "reward_mean": 0.5}) == 1
            assert numbers_of(await buffer.get(9, "math", Status.COMPLETED)) == [99, 1, 2]

    async def test_update_changes_status_and_staleness(self, url: str) -> None:
        async with ReplayBuffer(url, policy="staleness") as buffer:
            await buffer.put(make_group(1), "math", current_train_step=10)
            await buffer.put(make_group(2), "math")
            second = (await buffer.find())[1]
            second.staleness = 4
            assert await buffer.update([second]) == 1
            assert await buffer.count_where({"staleness": 4}) == 1
            first = (await buffer.find())[0]
            first.status = "archived"
            await buffer.update([first])
            assert (await buffer.find({"uid": first.uid}))[0].status is Status.ARCHIVED
            assert numbers_of(await buffer.get(9, "math", Status.COMPLETED)) == [2]

    async def test_update_of_many_and_of_none(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            for number in range(20):
                await buffer.put(make_group(number), "math")
            found = await buffer.find()
            for stored in found:
                stored.item[0].response = "changed"
            await buffer.delete([found[3].uid])
            assert await buffer.update(found) == 19
            assert await buffer.update([]) == 0
            assert {stored.item[0].response for stored in await buffer.find()} == {"changed"}

    async def test_update_ignores_unknown_uids(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1), "math")
            [found] = await buffer.find()
            found.uid += 1000
            assert await buffer.update([found]) == 0
            assert await buffer.size() == 1

    async def test_update_refuses_what_is_no_group(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1), "math")
            [found] = await buffer.find()
            found.item = []
            with pytest.raises(BadArgument, match="delete"):
                await buffer.update([found])
            found.item = ["text"]  # type: ignore[list-item]
            with pytest.raises(InvalidGroup):
                await buffer.update([found])
            found.item, found.status = make_group(1), "unheard of"
            with pytest.raises(BadArgument, match="unheard of"):
                await buffer.update([found])
            assert [stored.item for stored in await buffer.find()] == [make_group(1)]
