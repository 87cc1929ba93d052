"""A take that waits: woken by puts of its own and of other processes, and harmless once it is cancelled.

The bounds are generous, for a machine under load; what was measured is printed.
"""

import asyncio
import time
from pathlib import Path

import pytest
from workers import finish, logged, make_group, number_of, start

from sqlreplay import ReplayBuffer, TakeTimeout

SOON_S = 5


async def test_a_put_of_another_process_wakes_a_wait(url: str, tmp_path: Path) -> None:
    log = tmp_path / "put at"
    async with ReplayBuffer(url) as buffer:
        feeder = start("feed", url=url, task="math", numbers=[1], delay_s=0.5, log=str(log))
        batches, _ = await buffer.take_batch({"math": 1}, timeout=30)
        woken_ms = time.time_ns() // 10**6
        assert [number_of(group) for group in batches["math"]] == [1]
        await asyncio.to_thread(finish, [feeder])
    late_s = (woken_ms - logged(log)[0]) / 1000
    print(f"woken {late_s:.3f} s after the put returned")
    assert late_s < SOON_S


async def test_a_put_of_this_process_wakes_a_wait(url: str) -> None:
    async with ReplayBuffer(url) as buffer:
        for number in range(5):
            wait = asyncio.create_task(buffer.take_batch({"math": 1}, timeout=30))
            await asyncio.sleep(0.3)
            assert not wait.done()
            began = time.monotonic()
            await buffer.put(make_group(number), "math")
            batches, _ = await wait
            print(f"woken within {time.monotonic() - began:.3f} s")
            assert time.monotonic() - began < SOON_S
            assert [number_of(group) for group in batches["math"]] == [number]


async def test_require_full_over_two_tasks_fed_by_two_processes(url: str, tmp_path: Path) -> None:
    async with ReplayBuffer(url) as buffer:
        feeders = [
            start("feed", url=url, task=task, numbers=numbers, delay_s=delay_s, log=str(tmp_path / task))
            for task, numbers, delay_s in (("math", [1, 2, 3], 0.1), ("code", [4, 5], 0.8))
        ]
        batches, counts = await buffer.take_batch({"math": 3, "code": 2}, timeout=30, require_full=True)
        assert counts == {"math": 3, "code": 2}
        assert [number_of(group) for group in batches["math"]] == [1, 2, 3]
        assert [number_of(group) for group in batches["code"]] == [4, 5]
        await asyncio.to_thread(finish, feeders)


async def test_require_full_takes_nothing_at_its_deadline(url: str) -> None:
    async with ReplayBuffer(url) as buffer:
        await buffer.put(make_group(1), "math")
        with pytest.raises(TakeTimeout):
            await buffer.take_batch({"math": 1, "code": 1}, timeout=0.3, require_full=True)
        assert await buffer.count("math", "completed") == 1


async def test_a_cancelled_wait_takes_nothing(url: str) -> None:
    """Not even for a moment: the next take, without a timeout, must find what was put."""
    async with ReplayBuffer(url) as buffer:
        for number in range(10):
            waits = [asyncio.create_task(buffer.take_batch({"math": 1}, timeout=30)) for _ in range(3)]
            await asyncio.sleep(0.05)
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            assert all(wait.cancelled() for wait in waits)
            await buffer.put(make_group(number), "math")
            batches, _ = await buffer.take_batch({"math": 1})
            assert [number_of(group) for group in batches["math"]] == [number]


async def test_takes_that_are_cancelled_at_any_moment_lose_nothing(url: str) -> None:
    async with ReplayBuffer(url) as buffer:
        for number in range(40):
            await buffer.put(make_group(number), "math")
        taken = []
        for step in range(30):
            take = asyncio.create_task(buffer.take_batch({"math": 3}))
            await asyncio.sleep(step * 0.0005)
            take.cancel()
            try:
                batches, _ = await take
            except asyncio.CancelledError:
                continue
            taken += [number_of(group) for group in batches["math"]]
    async with ReplayBuffer(url) as buffer:
        batches, _ = await buffer.take_batch({"math": 100})
    left = [number_of(group) for group in batches["math"]]
    assert sorted(taken + left) == list(range(40))
