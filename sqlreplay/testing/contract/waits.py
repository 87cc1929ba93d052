"""Waiting for a batch: partial at the deadline, all or nothing, and woken by whoever puts."""

import asyncio
import time
from enum import Enum

import pytest

from sqlreplay import ReplayBuffer, Status, StoreClosed, TakeTimeout
from sqlreplay.testing.factories import make_group, numbers_of

__all__ = ["WaitContract"]


class Verdict(Enum):
    COMPLETED = "completed"
    EXPIRED = "expired"
    JUDGED = "judged"


class WaitContract:
    """`take_batch` with a timeout."""

    async def test_at_the_deadline_a_partial_batch(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1), "math")
            started = time.monotonic()
            groups, counts = await buffer.take_batch({"math": 2, "code": 1}, timeout=0.15)
            assert time.monotonic() - started >= 0.15
            assert numbers_of(groups["math"]) == [1]
            assert counts == {"math": 1, "code": 0}
            assert await buffer.size() == 0

    async def test_what_is_there_is_taken_at_once(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1), "math")
            started = time.monotonic()
            await buffer.take_batch({"math": 1, "code": 0}, timeout=30, require_full=True)
            assert time.monotonic() - started < 10

    async def test_require_full_takes_nothing_and_says_what_was_there(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1), "math")
            await buffer.put(make_group(2, status=Status.FAILED), "math")
            with pytest.raises(TakeTimeout) as caught:
                await buffer.take_batch({"math": 3, "code": 2}, timeout=0.05, require_full=True)
            message = str(caught.value)
            assert "0.05 s" in message
            assert "nothing was taken" in message
            assert "math: asked 3 completed, found 1" in message
            assert "'failed': 1" in message
            assert "code: asked 2 completed, found 0, waiting by status none" in message
            assert isinstance(caught.value, TimeoutError)
            assert await buffer.size() == 2

    async def test_require_full_without_a_timeout_does_not_wait(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1), "math")
            with pytest.raises(TakeTimeout):
                await buffer.take_batch({"math": 2}, require_full=True)
            groups, _ = await buffer.take_batch({"math": 1}, require_full=True)
            assert numbers_of(groups["math"]) == [1]

    async def test_the_message_speaks_of_the_filter_and_of_foreign_statuses(self, url: str) -> None:
        async with ReplayBuffer(url, status_type=Verdict) as buffer:
            await buffer.put(make_group(1), "math")
            with pytest.raises(TakeTimeout, match="only what the filter matches"):
                await buffer.take_batch({"math": 1}, where={"num_samples": 9}, timeout=0, require_full=True)
            with pytest.raises(TakeTimeout, match="asked 1 judged, found 0"):
                await buffer.take_batch({"math": 1}, group_status=Verdict.JUDGED, timeout=0, require_full=True)

    async def test_a_concurrent_put_wakes_the_waiter(self, url: str) -> None:
        async with ReplayBuffer(url) as taker, ReplayBuffer(url) as putter:
            taking = asyncio.create_task(taker.take_batch({"math": 2, "code": 1}, timeout=60))
            for number, task_name in enumerate(["math", "code", "math"], start=1):
                await asyncio.sleep(0.03)
                assert not taking.done()
                await putter.put(make_group(number), task_name)
            groups, counts = await asyncio.wait_for(taking, 20)
        assert numbers_of(groups["math"]) == [1, 3]
        assert counts == {"math": 2, "code": 1}

    async def test_a_status_change_wakes_the_waiter(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            await buffer.put(make_group(1, steps=[1, 1]), "math")
            taking = asyncio.create_task(buffer.take_batch({"math": 1}, group_status=Status.EXPIRED, timeout=60))
            await asyncio.sleep(0.03)
            await buffer.refresh_staleness(task_stale_thresholds={"math": 2}, current_train_step=9)
            groups, _ = await asyncio.wait_for(taking, 20)
        assert numbers_of(groups["math"]) == [1]

    async def test_a_budget_of_tokens_makes_a_batch_full(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            for number in (1, 2, 3):
                await buffer.put(make_group(number), "math")  # 8 tokens each
            groups, _ = await buffer.take_batch({"math": 9}, max_tokens=20, timeout=30, require_full=True)
            assert numbers_of(groups["math"]) == [1, 2]
            with pytest.raises(TakeTimeout):
                await buffer.take_batch({"math": 9}, max_tokens=20, timeout=0.05, require_full=True)
            assert await buffer.size() == 1

    async def test_closing_ends_a_wait(self, url: str) -> None:
        buffer = ReplayBuffer(url)
        taking = asyncio.create_task(buffer.take_batch({"math": 1}, timeout=60))
        await asyncio.sleep(0.1)
        await buffer.close()
        with pytest.raises(StoreClosed):
            await asyncio.wait_for(taking, 20)
