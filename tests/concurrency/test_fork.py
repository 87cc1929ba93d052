"""os.fork with an open buffer. SQLite is the point: its file locks belong to a process, and a child that inherits an
open file believes that it holds them."""

import asyncio
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from workers import AckLog, logged, make_group, put_pickled, stored, wait_until

from sqlreplay import BlockingReplayBuffer, ReplayBuffer

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def forked(work: Callable[[], None]) -> int:
    """Run `work` in a child that leaves without Python's own end, and return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(pid: int, timeout_s: float = 30) -> int:
    """Wait for a child and return its exit code; one that hangs is killed and fails the test."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail(f"the child did not end within {timeout_s} s")


def test_what_a_child_put_outlives_its_parents_close(url: str, tmp_path: Path) -> None:
    log = tmp_path / "acks"
    buffer = BlockingReplayBuffer(url)
    buffer.put(make_group(0), "math")

    def put_until_killed() -> None:
        acks = AckLog(log)
        for number in range(1, 10**6):
            buffer.put(make_group(number), "math")
            acks.add([number])

    child = forked(put_until_killed)
    try:
        wait_until(lambda: len(logged(log)) >= 10)
        buffer.close()
        seen = len(logged(log))
        wait_until(lambda: len(logged(log)) >= seen + 10)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    found = stored(url)
    assert len(found) == len(set(found))
    assert set(found) >= {0, *logged(log)}


def test_both_sides_go_on_after_a_fork(url: str) -> None:
    with BlockingReplayBuffer(url) as buffer:
        buffer.put(make_group(0), "math")

        def put_twenty() -> None:
            for number in range(1, 21):
                buffer.put(make_group(number), "math")
                assert buffer.count("code", "completed") >= 0
            buffer.close()

        child = forked(put_twenty)
        for number in range(101, 121):
            buffer.put(make_group(number), "math")
        assert ended(child) == 0
        assert sorted(stored(url)) == [0, *range(1, 21), *range(101, 121)]
        taken = buffer.get(100, "math", "completed")
        assert len(taken) == 41


def test_fork_while_another_thread_puts(url: str) -> None:
    put: list[int] = []
    problems: list[BaseException] = []
    stop = threading.Event()

    def put_until_stopped() -> None:
        number = 0
        try:
            while not stop.is_set():
                buffer.put(make_group(number), "math")
                put.append(number)
                number += 1
        except BaseException as error:
            problems.append(error)

    with BlockingReplayBuffer(url) as buffer:
        thread = threading.Thread(target=put_until_stopped)
        thread.start()
        try:
            children = []
            for child in range(1, 6):
                before = len(put)
                wait_until(lambda before=before: len(put) > before)
                numbers = range(child * 10**6, child * 10**6 + 5)
                children.append(forked(lambda numbers=numbers: put_blocking(buffer, numbers)))
            assert [ended(child) for child in children] == [0] * 5
            before = len(put)
            wait_until(lambda: len(put) > before)
        finally:
            stop.set()
            thread.join(30)
        assert not problems
        from_children = [child * 10**6 + i for child in range(1, 6) for i in range(5)]
        assert sorted(stored(url)) == sorted(put + from_children)


def put_blocking(buffer: BlockingReplayBuffer, numbers: range) -> None:
    for number in numbers:
        buffer.put(make_group(number), "math")
    buffer.close()


def test_fork_while_another_thread_closes(url: str) -> None:
    """The closing store still has its files open; a child must not inherit them."""
    for attempt in range(10):
        buffer = BlockingReplayBuffer(url)
        buffer.put(make_group(attempt), "math")
        closing = threading.Thread(target=buffer.close)
        closing.start()
        child = forked(lambda: assert_no_inherited_file(url.removeprefix("sqlite:///")))
        closing.join()
        assert ended(child) == 0


def assert_no_inherited_file(path: str) -> None:
    names = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.exists()]
    held = [name for name in names if name.startswith(path)]
    assert not held, f"the child inherited {held}"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pickled_buffer_in_multiprocessing(url: str, method: str) -> None:
    context = multiprocessing.get_context(method)
    buffer = BlockingReplayBuffer(url)
    buffer.put(make_group(0), "math")
    sent = pickle.loads(pickle.dumps(ReplayBuffer(url)))
    children = [context.Process(target=put_pickled, args=(sent, list(range(n * 10, n * 10 + 5)))) for n in (1, 2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0]
    buffer.close()
    assert sorted(stored(url)) == [0, *range(10, 15), *range(20, 25)]


async def test_fork_in_a_running_event_loop(url: str) -> None:
    async with ReplayBuffer(url) as buffer:
        waiting = [asyncio.create_task(buffer.put(make_group(number), "math")) for number in range(20)]
        await asyncio.sleep(0)

        def put_on_a_loop_of_its_own() -> None:
            thread = threading.Thread(target=put_pickled, args=(buffer, [100, 101, 102]))
            thread.start()
            thread.join()

        child = forked(put_on_a_loop_of_its_own)
        await asyncio.gather(*waiting)
        assert await asyncio.to_thread(ended, child) == 0
        await buffer.put(make_group(20), "math")
        found = await asyncio.to_thread(stored, url)
        assert sorted(found) == [*range(21), 100, 101, 102]
