"""Processes that the tests start, and what those write down: `python workers.py <role> <arguments as JSON>`.

A worker logs a number only after the call for it has returned, so a log is what its caller was promised.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sqlreplay import BlockingReplayBuffer, ReplayBuffer, RolloutState, Status

SAMPLES = 2


def make_group(number: int) -> list[RolloutState]:
    """A group that carries its number, in a form that shows when a part of it is missing."""
    return [
        RolloutState(
            message=[{"role": "user", "content": f"question {number}"}],
            group_id=number,
            rollout_id=number * SAMPLES + index,
            prompt_ids=[1, 2],
            response=f"answer {number} {index}",
            response_ids=[5, number % 1000],
            logprobs=[0.1, 0.2],
            response_mask=[1, 1],
            status=Status.COMPLETED,
        )
        for index in range(SAMPLES)
    ]


def number_of(group: list[RolloutState]) -> int:
    """Return the number of a group that is whole."""
    number = group[0].group_id
    assert number is not None
    found = [(state.group_id, state.rollout_id, state.response, state.response_ids) for state in group]
    expected = [
        (number, number * SAMPLES + index, f"answer {number} {index}", [5, number % 1000]) for index in range(SAMPLES)
    ]
    assert found == expected, f"group {number} is not whole: {found}"
    return number


class AckLog:
    """Numbers, appended, one write for each call that returned."""

    def __init__(self, path: str | Path, *, sync: bool = True) -> None:
        self._sync = sync
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def add(self, numbers: Iterable[int]) -> None:
        if lines := "".join(f"{number}\n" for number in numbers):
            os.write(self._file, lines.encode())
            if self._sync:
                os.fsync(self._file)


def logged(path: str | Path) -> list[int]:
    return [int(line) for line in Path(path).read_text().split()] if Path(path).exists() else []


def stored(url: str, **query: Any) -> list[int]:
    """Return the numbers of all groups that are in the database, each of them whole."""
    with BlockingReplayBuffer(url) as buffer:
        return [number_of(found.item) for found in buffer.find(query or None)]


def start(role: str, **arguments: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-W",
            "error::RuntimeWarning",
            "-W",
            "error::ResourceWarning",
            __file__,
            role,
            json.dumps(arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(workers: Iterable[subprocess.Popen[str]], timeout_s: float = 60) -> None:
    """Wait until all have ended. One that failed, or wrote anything to stderr, is shown."""
    problems = []
    deadline = time.monotonic() + timeout_s
    for worker in workers:
        try:
            _, errors = worker.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            _, errors = worker.communicate()
            errors += f"\nstill running after {timeout_s} s"
        if worker.returncode or errors:
            problems.append(f"{worker.args[6]} ended with {worker.returncode}:\n{errors}")
    assert not problems, "\n".join(problems)


def wait_until(is_so: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"did not happen within {timeout_s} s"
        time.sleep(0.01)


async def produce(url: str, log: str, numbers: list[int], tasks: list[str]) -> None:
    """Put numbers, eight at a time."""
    acks = AckLog(log, sync=False)
    todo = iter(numbers)

    async def put_some() -> None:
        for number in todo:
            await buffer.put(make_group(number), tasks[number % len(tasks)], model_step=1)
            acks.add([number])

    async with ReplayBuffer(url) as buffer:
        await asyncio.gather(*(put_some() for _ in range(8)))


async def produce_forever(url: str, log: str, first: int, tasks: list[str], stop: str) -> None:
    """Put numbers from the first on, four at a time, until the file `stop` is there."""
    acks = AckLog(log)
    number = first

    async def put_some() -> None:
        nonlocal number
        while not os.path.exists(stop):
            number, mine = number + 1, number
            await buffer.put(make_group(mine), tasks[mine % len(tasks)])
            acks.add([mine])
            await asyncio.sleep(0.005)

    async with ReplayBuffer(url) as buffer:
        await asyncio.gather(*(put_some() for _ in range(4)))


async def consume(url: str, log: str, batch: int, tasks: list[str], stop: str) -> None:
    """Take batches until the file `stop` is there and nothing is left."""
    acks = AckLog(log)
    async with ReplayBuffer(url) as buffer:
        while True:
            stopping = os.path.exists(stop)
            batches, _ = await buffer.take_batch(dict.fromkeys(tasks, batch))
            acks.add(number_of(group) for groups in batches.values() for group in groups)
            if stopping and not any(batches.values()):
                return
            await asyncio.sleep(0.005)


async def mix(url: str, log: str, put_log: str, numbers: list[int], tasks: list[str], stop: str, seed: int) -> None:
    """Every verb of a trainer in random order: put, take, wait, count, look, refresh."""
    taken, puts = AckLog(log, sync=False), AckLog(put_log, sync=False)
    chance = random.Random(seed)
    todo = list(numbers)
    async with ReplayBuffer(url, policy="staleness") as buffer:
        while True:
            stopping = os.path.exists(stop)
            verb = chance.choice(["take", "take", "take", "wait", "count", "is_ready", "refresh", "put"])
            if verb == "put" and todo:
                number = todo.pop()
                await buffer.put(make_group(number), chance.choice(tasks), model_step=1)
                puts.add([number])
            elif verb == "count":
                assert await buffer.count(chance.choice(tasks), Status.COMPLETED) >= 0
            elif verb == "is_ready":
                assert await buffer.is_ready({}) is True
                await buffer.is_ready(dict.fromkeys(tasks, 3))
            elif verb == "refresh":
                thresholds = dict.fromkeys(tasks, 10**6)
                expired = await buffer.refresh_staleness(task_stale_thresholds=thresholds, current_train_step=2)
                assert not any(expired.values())
            else:
                timeout = 0.05 if verb == "wait" else None
                batches, counts = await buffer.take_batch(
                    {task: chance.randint(1, 5) for task in tasks}, timeout=timeout
                )
                assert counts == {task: len(groups) for task, groups in batches.items()}
                taken.add(number_of(group) for groups in batches.values() for group in groups)
                if stopping and not todo and not any(batches.values()):
                    return


async def feed(url: str, task: str, numbers: list[int], delay_s: float, log: str) -> None:
    """Say `ready`, then put after a while; the log gets the moment after each put, in milliseconds."""
    async with ReplayBuffer(url) as buffer:
        print("ready", flush=True)
        sys.stdin.readline() if delay_s < 0 else await asyncio.sleep(delay_s)
        for number in numbers:
            await buffer.put(make_group(number), task)
            AckLog(log).add([time.time_ns() // 10**6])


def put_pickled(buffer: ReplayBuffer[RolloutState], numbers: list[int]) -> None:
    """What a `multiprocessing` child does with a buffer it was sent."""

    async def put_all() -> None:
        for number in numbers:
            await buffer.put(make_group(number), "math")
        await buffer.close()

    asyncio.run(put_all())


ROLES = {role.__name__: role for role in (produce, produce_forever, consume, mix, feed)}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](**json.loads(sys.argv[2])))
