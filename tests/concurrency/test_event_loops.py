"""One buffer, many event loops and threads, and what happens to all of them when it closes."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from workers import make_group, number_of, stored

from sqlreplay import BlockingReplayBuffer, ReplayBuffer, StoreClosed

PROMPTLY_S = 5


def test_ten_loops_and_the_blocking_twin_share_one_buffer(url: str) -> None:
    shared = ReplayBuffer(url)
    twin = BlockingReplayBuffer(url)

    async def put_and_take(first: int) -> list[int]:
        await asyncio.gather(*(shared.put(make_group(first + i), "math") for i in range(20)))
        batches, _ = await shared.take_batch({"math": 10})
        return [number_of(group) for group in batches["math"]]

    def put_and_take_blocking(first: int) -> list[int]:
        for number in range(first, first + 20):
            twin.put(make_group(number), "math")
        return [number_of(group) for group in twin.get(10, "math", "completed")]

    with ThreadPoolExecutor(11) as threads:
        loops = [threads.submit(asyncio.run, put_and_take(index * 100)) for index in range(10)]
        blocking = threads.submit(put_and_take_blocking, 1000)
        taken = [number for future in (*loops, blocking) for number in future.result(60)]
    shared.close_and_wait()
    twin.close()
    assert len(taken) == 110
    assert sorted(taken + stored(url)) == [index * 100 + i for index in range(11) for i in range(20)]


def test_a_blocked_loop_does_not_stop_another_thread(url: str) -> None:
    buffer = ReplayBuffer(url)
    blocked, go_on = threading.Event(), threading.Event()

    async def put_then_block() -> None:
        waiting = [asyncio.create_task(buffer.put(make_group(number), "math")) for number in range(20)]
        await asyncio.sleep(0)
        blocked.set()
        assert go_on.wait(30)
        await asyncio.gather(*waiting)

    async def put_others() -> float:
        began = time.monotonic()
        for number in range(100, 120):
            await buffer.put(make_group(number), "math")
        return time.monotonic() - began

    thread = threading.Thread(target=lambda: asyncio.run(put_then_block()))
    thread.start()
    try:
        assert blocked.wait(30)
        took_s = asyncio.run(asyncio.wait_for(put_others(), 20))
        print(f"20 puts beside a blocked loop took {took_s:.2f} s")
    finally:
        go_on.set()
        thread.join()
        buffer.close_and_wait()
    assert sorted(stored(url)) == [*range(20), *range(100, 120)]


async def test_closing_ends_a_wait(url: str) -> None:
    buffer = ReplayBuffer(url)
    waits = [asyncio.create_task(buffer.take_batch({"math": 1}, timeout=60)) for _ in range(3)]
    await asyncio.sleep(0.3)
    began = time.monotonic()
    await buffer.close()
    for wait in waits:
        with pytest.raises(StoreClosed):
            await asyncio.wait_for(wait, PROMPTLY_S)
    print(f"closing took {time.monotonic() - began:.3f} s")
    assert time.monotonic() - began < PROMPTLY_S


async def test_closing_ends_the_waits_of_its_own_buffer(url: str) -> None:
    """Two buffers on one database share a thread; closing one ends its own waits and leaves the other's."""
    closed, other = ReplayBuffer(url), ReplayBuffer(url)
    wait = asyncio.create_task(closed.take_batch({"math": 1}, timeout=60))
    other_wait = asyncio.create_task(other.take_batch({"math": 1}, timeout=60))
    await asyncio.sleep(0.3)
    try:
        await closed.close()
        with pytest.raises(StoreClosed):
            await asyncio.wait_for(wait, PROMPTLY_S)
        await other.put(make_group(1), "math")
        batches, _ = await asyncio.wait_for(other_wait, PROMPTLY_S)
        assert [number_of(group) for group in batches["math"]] == [1]
    finally:
        await other.close()


def test_closing_ends_a_wait_of_the_blocking_twin(url: str) -> None:
    for _ in range(5):
        buffer = BlockingReplayBuffer(url)
        buffer.count("math", "completed")
        with ThreadPoolExecutor(3) as threads:
            waits = [threads.submit(buffer.take_batch, {"math": 1}, timeout=60) for _ in range(3)]
            time.sleep(0.1)
            buffer.close()
            for wait in waits:
                with pytest.raises(StoreClosed):
                    wait.result(PROMPTLY_S)


async def test_puts_queued_before_a_close_are_stored(url: str) -> None:
    buffer = ReplayBuffer(url)
    puts = [asyncio.create_task(buffer.put(make_group(number), "math")) for number in range(200)]
    await asyncio.sleep(0)
    await buffer.close()
    outcomes = await asyncio.wait_for(asyncio.gather(*puts, return_exceptions=True), PROMPTLY_S)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert all(isinstance(outcome, StoreClosed) for outcome in refused), refused
    assert len(refused) < 200, "all were refused, so this run showed nothing"
    acknowledged = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, int)]
    found = await asyncio.to_thread(stored, url)
    assert sorted(found) == acknowledged


def test_every_caller_hears_of_a_close(url: str) -> None:
    """Threads that call at the very moment of the close get their answer or StoreClosed: none hangs, none gets an
    error of asyncio's own."""
    acknowledged: list[int] = []
    for attempt in range(15):
        buffer = BlockingReplayBuffer(url)
        shared = ReplayBuffer(url)
        buffer.count("math", "completed")
        with ThreadPoolExecutor(4) as threads:
            callers = [
                threads.submit(put_until_closed, buffer, attempt * 10**4 + index * 1000, acknowledged)
                for index in range(2)
            ]
            callers.append(threads.submit(count_until_closed, buffer))
            callers.append(threads.submit(asyncio.run, count_shared_until_closed(shared)))
            time.sleep(0.01 + attempt * 0.002)
            shared.close_and_wait()
            buffer.close()
            for caller in callers:
                caller.result(PROMPTLY_S)
    assert acknowledged
    assert sorted(stored(url)) == sorted(acknowledged)


def put_until_closed(buffer: BlockingReplayBuffer, first: int, acknowledged: list[int]) -> None:
    for number in range(first, first + 1000):
        try:
            buffer.put(make_group(number), "math")
        except StoreClosed:
            return
        acknowledged.append(number)


def count_until_closed(buffer: BlockingReplayBuffer) -> None:
    while True:
        try:
            buffer.count("math", "completed")
        except StoreClosed:
            return


async def count_shared_until_closed(buffer: ReplayBuffer) -> None:
    while True:
        try:
            await buffer.count("math", "completed")
        except StoreClosed:
            return
