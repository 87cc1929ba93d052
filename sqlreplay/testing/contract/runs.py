"""One database, many runs; one buffer, many handles."""

import pickle

import pytest

from sqlreplay import (
    AsyncReplayBufferConfig,
    Lifo,
    ReplayBuffer,
    RunNotEmpty,
    Status,
    StoreClosed,
    SyncReplayBufferConfig,
)
from sqlreplay.testing.factories import make_group, numbers_of

__all__ = ["RunContract"]


class RunContract:
    """Runs do not see each other; handles on one run do."""

    async def test_runs_are_apart(self, url: str) -> None:
        async with ReplayBuffer(url, run="one") as one, ReplayBuffer(url, run="two") as two:
            uid = await one.put(make_group(1, steps=[1, 1]), "math", current_train_step=5)
            other = await two.put(make_group(2, steps=[1, 1]), "math")
            assert uid is not None
            assert other is not None
            assert await one.size() == await two.size() == 1
            assert numbers_of([found.item for found in await two.find()]) == [2]
            assert await two.find({"uid": uid}) == []
            assert await two.delete([uid]) == 0
            [found] = await one.find()
            assert await two.update([found]) == 0
            assert (await two.stats()).tasks["math"].train_step is None
            await two.refresh_staleness(task_stale_thresholds={"math": 1}, current_train_step=9)
            assert await one.count("math", Status.COMPLETED) == 1
            assert await two.get(9, "math", Status.COMPLETED) == []
            assert numbers_of(await one.get(9, "math", Status.COMPLETED)) == [1]

    async def test_fresh_refuses_a_run_that_holds_groups(self, url: str) -> None:
        async with ReplayBuffer(url, run="mine", fresh=True) as buffer:
            await buffer.put(make_group(1), "math")
            assert await buffer.size() == 1
        with pytest.raises(RunNotEmpty, match="'mine'"):
            async with ReplayBuffer(url, run="mine", fresh=True):
                pass
        lazy = ReplayBuffer(url, run="mine", fresh=True)
        try:
            for _ in range(2):
                with pytest.raises(RunNotEmpty):
                    await lazy.put(make_group(2), "math")
        finally:
            await lazy.close()
        async with ReplayBuffer(url, run="other", fresh=True) as buffer:
            assert await buffer.size() == 0
        async with ReplayBuffer(url, run="mine") as buffer:
            assert numbers_of(await buffer.get(9, "math", Status.COMPLETED)) == [1]
        async with ReplayBuffer(url, run="mine", fresh=True) as buffer:
            assert await buffer.size() == 0

    async def test_a_closed_buffer_says_so(self, url: str) -> None:
        buffer = ReplayBuffer(url)
        await buffer.put(make_group(1), "math")
        await buffer.close()
        await buffer.close()
        with pytest.raises(StoreClosed):
            await buffer.put(make_group(2), "math")
        with pytest.raises(StoreClosed):
            await buffer.size()
        with pytest.raises(StoreClosed):
            len(buffer)

    async def test_one_handle_may_close_before_the_other(self, url: str) -> None:
        async with ReplayBuffer(url) as first:
            async with ReplayBuffer(url) as second:
                await second.put(make_group(1), "math")
            assert await first.size() == 1

    async def test_a_pickled_buffer_shares_the_data(self, url: str) -> None:
        async with ReplayBuffer(url, run="mine", policy=Lifo(), expiry="sample", fresh=True) as buffer:
            await buffer.put(make_group(1, steps=[1, 9]), "math")
            copy = pickle.loads(pickle.dumps(buffer))  # noqa: S301 - our own bytes
            async with copy:
                await copy.put(make_group(2), "math")
                await copy.refresh_staleness(task_stale_thresholds={"math": 5}, current_train_step=10)
                [group] = await copy.get(1, "math", Status.EXPIRED)
                assert [state.status.value for state in group] == ["expired", "completed"]
                await buffer.put(make_group(3), "math")
                assert numbers_of(await copy.get(1, "math", Status.COMPLETED)) == [3]
            assert await buffer.size() == 1

    async def test_presets_build_buffers_that_open_by_themselves(self, url: str) -> None:
        on_policy = SyncReplayBufferConfig(url=url, run="mine").build()
        off_policy = AsyncReplayBufferConfig(url=url, run="mine").build()
        try:
            for number, step in ((1, 5), (2, 3), (3, 1)):
                await on_policy.put(make_group(number, steps=[step, step]), "math")
            assert numbers_of(await off_policy.get(1, "math", Status.COMPLETED)) == [3]
            assert numbers_of(await on_policy.get(1, "math", Status.COMPLETED)) == [1]
        finally:
            await on_policy.close()
            await off_policy.close()
