"""Capacities and limiters under many processes: what they promise holds at every moment that anybody can look at."""

import asyncio
import multiprocessing
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy.engine import make_url
from workers import make_group, number_of

from sqlreplay import (
    BlockingReplayBuffer,
    Fifo,
    PutTimeout,
    Queue,
    ReplayBuffer,
    SampleTimeout,
    SampleToInsertRatio,
    StoreClosed,
    Table,
    TableConfig,
    TableFull,
)
from sqlreplay.store import Standing

WRITERS = 8
LIMIT = 50
PATIENCE_S = 90
COUNT = "SELECT count(*) FROM sqlreplay_groups"
BYTES = "SELECT coalesce(sum(size_bytes), 0) FROM sqlreplay_groups"
AHEAD = "SELECT inserts * {ratio} - samples FROM sqlreplay_tasks"


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Processes that know nothing of this one; they stay for the whole module, and open buffers of their own."""
    with ProcessPoolExecutor(WRITERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        wait_for([pool.submit(time.sleep, 0.2) for _ in range(WRITERS)])
        yield pool


@contextmanager
def watching(url: str, *queries: str) -> Iterator[list[list[float]]]:
    """Ask these questions again and again on a connection of their own; each has its list of answers."""
    answers: list[list[float]] = [[] for _ in queries]
    done, began = threading.Event(), threading.Event()
    problems: list[Exception] = []

    def watch_sqlite() -> None:
        connection = sqlite3.connect(str(make_url(url).database), timeout=60, isolation_level=None)
        try:
            while not done.is_set():
                for query, found in zip(queries, answers, strict=True):
                    found.append(connection.execute(query).fetchone()[0])
                began.set()
                time.sleep(0.0005)
        finally:
            connection.close()

    async def watch_postgres() -> None:
        connection = await asyncpg.connect(url)
        try:
            while not done.is_set():
                for query, found in zip(queries, answers, strict=True):
                    found.append(float(await connection.fetchval(query)))
                began.set()
        finally:
            await connection.close()

    def watch() -> None:
        try:
            watch_sqlite() if url.startswith("sqlite") else asyncio.run(watch_postgres())
        except Exception as error:
            problems.append(error)
            began.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    began.wait(PATIENCE_S)
    try:
        yield answers
    finally:
        done.set()
        watcher.join()
    assert problems == []


def standing_of(url: str, task_name: str = "math") -> Standing:
    with BlockingReplayBuffer(url) as buffer:
        thread = buffer.unblocked.joined_thread()
        found = thread.wait(thread.store.tables.standing("default", task_name))
        assert found is not None
        return found


def results(futures: list["Future[Any]"]) -> list[Any]:
    wait_for(futures, PATIENCE_S)
    return [future.result(timeout=1) for future in futures]


def write(url: str, first: int, count: int, tasks: list[str]) -> dict[str, Any]:
    """Put numbers, four at a time; return the uids stored, those evicted, and the numbers refused."""

    async def run() -> dict[str, Any]:
        stored: list[int] = []
        evicted: list[int] = []
        refused: list[int] = []
        numbers = iter(range(first, first + count))

        async def put_some() -> None:
            for number in numbers:
                try:
                    uid = await buffer.put(make_group(number), tasks[number % len(tasks)], timeout=PATIENCE_S)
                except TableFull:
                    refused.append(number)
                    continue
                assert uid is not None
                stored.append(int(uid))
                evicted.extend(uid.evicted)

        async with ReplayBuffer(url) as buffer:
            await asyncio.gather(*(put_some() for _ in range(4)))
            assert (await buffer.stats()).process["evicted_total"] == len(evicted)
        return {"stored": stored, "evicted": evicted, "refused": refused}

    return asyncio.run(run())


def write_all(
    processes: ProcessPoolExecutor, url: str, each: int, tasks: list[str] | None = None
) -> list["Future[dict[str, Any]]"]:
    return [processes.submit(write, url, number * each, each, tasks or ["math"]) for number in range(WRITERS)]


def together(written: list[dict[str, Any]], name: str) -> list[int]:
    return [number for of_one in written for number in of_one[name]]


def check_evictions(url: str, written: list[dict[str, Any]], standings: list[Standing]) -> None:
    """Whoever was stored is there or was reported as evicted, once, and the counters say the same."""
    stored, evicted = together(written, "stored"), together(written, "evicted")
    with BlockingReplayBuffer(url) as buffer:
        left = [found.uid for found in buffer.find()]
        for found in buffer.find():
            number_of(found.item)
    assert len(set(evicted)) == len(evicted)
    assert sorted(left + evicted) == sorted(stored)
    assert sum(standing.evictions for standing in standings) == len(evicted)
    assert sum(standing.inserts for standing in standings) == len(stored)
    for standing in standings:
        assert standing.inserts - standing.deletes == standing.size
    assert sum(standing.size for standing in standings) == len(left)


def settle(url: str, **config: Any) -> None:
    with BlockingReplayBuffer(url, tables={"math": TableConfig(**config)}):
        pass


def test_eight_writers_never_hold_more_than_the_capacity_for_an_instant(
    url: str, processes: ProcessPoolExecutor
) -> None:
    settle(url, max_size=LIMIT)
    with watching(url, COUNT) as [counts]:
        written = results(write_all(processes, url, each=40))
    assert max(counts) == LIMIT
    assert len(counts) > 20
    standing = standing_of(url)
    assert (standing.size, standing.evictions) == (LIMIT, WRITERS * 40 - LIMIT)
    check_evictions(url, written, [standing])


def test_eight_writers_wait_for_room_and_everything_arrives_once(url: str, processes: ProcessPoolExecutor) -> None:
    settle(url, max_size=LIMIT, on_full="block")
    taken: list[int] = []
    with watching(url, COUNT) as [counts], BlockingReplayBuffer(url) as buffer:
        writers = write_all(processes, url, each=20)
        while len(taken) < WRITERS * 20:
            batches, _ = buffer.take_batch({"math": 7}, timeout=1)
            taken += [number_of(group) for group in batches["math"]]
            if all(writer.done() for writer in writers) and not batches["math"]:
                break
        written = results(writers)
    assert max(counts) <= LIMIT
    assert sorted(taken) == list(range(WRITERS * 20))
    assert together(written, "evicted") == together(written, "refused") == []
    standing = standing_of(url)
    assert (standing.inserts, standing.deletes, standing.evictions) == (WRITERS * 20, WRITERS * 20, 0)
    assert (standing.size, standing.size_bytes, standing.stream_size, standing.weight_sum) == (0, 0, 0, 0)


def test_eight_writers_are_refused_once_it_is_full(url: str, processes: ProcessPoolExecutor) -> None:
    settle(url, max_size=LIMIT, on_full="reject")
    with watching(url, COUNT) as [counts]:
        written = results(write_all(processes, url, each=20))
    assert max(counts) == LIMIT
    assert len(together(written, "stored")) == LIMIT
    assert len(together(written, "refused")) == WRITERS * 20 - LIMIT
    check_evictions(url, written, [standing_of(url)])


def test_eight_writers_never_hold_more_than_the_bytes_allowed(url: str, processes: ProcessPoolExecutor) -> None:
    with BlockingReplayBuffer(url) as buffer:
        buffer.put(make_group(100), "scale")
        allowed = buffer.stats().tasks["scale"].bytes * 20
        buffer.delete([found.uid for found in buffer.find()])
    settle(url, max_bytes=allowed)
    with watching(url, BYTES) as [sizes]:
        written = results(write_all(processes, url, each=25))
    assert allowed / 2 < max(sizes) <= allowed
    standing = standing_of(url)
    assert standing.size_bytes <= allowed
    check_evictions(url, written, [standing])


def test_eight_writers_of_three_tasks_share_the_capacity_of_the_run(url: str, processes: ProcessPoolExecutor) -> None:
    tasks = ["math", "code", "chat"]
    with BlockingReplayBuffer(url, max_size=LIMIT, tables={"code": TableConfig(max_size=10)}):
        pass
    queries = (COUNT, f"{COUNT} WHERE task_id = (SELECT id FROM sqlreplay_tasks WHERE name = 'code')")
    with watching(url, *queries) as [counts, of_code]:
        written = results(write_all(processes, url, each=25, tasks=tasks))
    assert max(counts) == LIMIT
    assert max(of_code) <= 10
    standings = [standing_of(url, name) for name in tasks]
    assert sum(standing.size for standing in standings) == LIMIT
    check_evictions(url, written, standings)


def produce_into_queue(url: str, count: int, size: int) -> None:
    with Table.queue(url, "queue", size) as table:
        for number in range(count):
            table.insert(number, {"number": number}, timeout=PATIENCE_S)


def consume_from_queue(url: str, count: int, size: int) -> list[int]:
    with Table.queue(url, "queue", size) as table:
        found: list[int] = []
        while len(found) < count:
            samples: Any = table.sample(min(1 + len(found) % 2, count - len(found)), timeout=PATIENCE_S)
            found += [sample.group["number"] for sample in samples]
        return found


def test_a_queue_between_two_processes_gives_everything_once_in_order(url: str, processes: ProcessPoolExecutor) -> None:
    with Table.queue(url, "queue", 5):
        pass
    with watching(url, COUNT) as [counts]:
        [_, found] = results([processes.submit(role, url, 80, 5) for role in (produce_into_queue, consume_from_queue)])
    assert found == list(range(80))
    assert max(counts) <= 5
    standing = standing_of(url, "queue")
    assert (standing.inserts, standing.samples, standing.deletes, standing.size) == (80, 80, 80, 0)
    assert standing.evictions == 0


RATIO = SampleToInsertRatio(2.0, 4, 6.0)
LOWEST, HIGHEST = 2.0, 14.0


def insert_until_it_waits(url: str) -> None:
    with BlockingReplayBuffer(url) as buffer:
        for number in range(100):
            try:
                buffer.put(make_group(number), "math", timeout=0)
            except PutTimeout:
                return
    raise AssertionError("the limiter let 100 groups in")


def sample_until_it_waits(url: str) -> None:
    with BlockingReplayBuffer(url) as buffer:
        for _ in range(100):
            try:
                buffer.sample(1, "math", timeout=0)
            except SampleTimeout:
                return
    raise AssertionError("the limiter let 100 samples out")


def test_a_ratio_holds_across_restarts(url: str, processes: ProcessPoolExecutor) -> None:
    """Every step is another process, which knows only what is stored."""
    settle(url, rate_limiter=RATIO)
    seen = []
    for role in (insert_until_it_waits, sample_until_it_waits) * 3:
        processes.submit(role, url).result(PATIENCE_S)
        standing = standing_of(url)
        seen.append((standing.inserts, standing.samples))
    assert seen == [(7, 0), (7, 12), (13, 12), (13, 24), (19, 24), (19, 36)]
    for inserts, samples in seen:
        assert LOWEST <= inserts * 2.0 - samples <= HIGHEST


def put_many(url: str, first: int, count: int) -> int:
    return len(write(url, first, count, ["math"])["stored"])


def sample_many(url: str, count: int) -> int:
    with BlockingReplayBuffer(url) as buffer:
        return sum(len(buffer.sample(1, "math", timeout=PATIENCE_S)) for _ in range(count))


def test_a_ratio_holds_at_every_moment_between_writers_and_samplers(url: str, processes: ProcessPoolExecutor) -> None:
    settle(url, rate_limiter=RATIO)
    with BlockingReplayBuffer(url) as buffer:
        for number in range(4):
            buffer.put(make_group(number), "math", timeout=0)
    with watching(url, AHEAD.format(ratio=2)) as [ahead]:
        done = results(
            [processes.submit(put_many, url, 100 * writer, 15) for writer in range(1, 5)]
            + [processes.submit(sample_many, url, 30) for _ in range(4)]
        )
    assert done == [15] * 4 + [30] * 4
    assert LOWEST <= min(ahead) <= max(ahead) <= HIGHEST
    standing = standing_of(url)
    assert (standing.inserts, standing.samples) == (64, 120)


def sample_after_saying_so(url: str, said: str) -> int:
    with BlockingReplayBuffer(url) as buffer:
        Path(said).touch()
        [sample] = buffer.sample(1, "math", timeout=PATIENCE_S)
        return number_of(sample.group)


def put_after_saying_so(url: str, said: str) -> int:
    with BlockingReplayBuffer(url) as buffer:
        Path(said).touch()
        uid = buffer.put(make_group(2), "math", timeout=PATIENCE_S)
        assert uid is not None
        return int(uid)


def waits(said: Path, future: "Future[Any]") -> None:
    """Return when the other process is at its call, and has been for a while."""
    deadline = time.monotonic() + PATIENCE_S
    while not said.exists() and not future.done():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)
    assert not future.done(), future.result()


def test_a_put_wakes_a_sampler_of_another_process(url: str, processes: ProcessPoolExecutor, tmp_path: Path) -> None:
    settle(url, rate_limiter=Queue(3))
    said = tmp_path / "waits"
    sampler = processes.submit(sample_after_saying_so, url, str(said))
    waits(said, sampler)
    with BlockingReplayBuffer(url) as buffer:
        buffer.put(make_group(7), "math")
        assert sampler.result(PATIENCE_S) == 7


@pytest.mark.parametrize("config", [{"max_size": 1, "on_full": "block"}, {"rate_limiter": Queue(1)}], ids=str)
def test_a_take_wakes_a_put_of_another_process(
    url: str, processes: ProcessPoolExecutor, tmp_path: Path, config: dict[str, Any]
) -> None:
    settle(url, **config)
    said = tmp_path / "waits"
    with BlockingReplayBuffer(url) as buffer:
        buffer.put(make_group(1), "math")
        writer = processes.submit(put_after_saying_so, url, str(said))
        waits(said, writer)
        batches, _ = buffer.take_batch({"math": 1})
        assert [number_of(group) for group in batches["math"]] == [1]
        uid = writer.result(PATIENCE_S)
        assert [found.uid for found in buffer.find()] == [uid]


def sample_from_table(url: str, said: str) -> str:
    with Table(url, "replay", sampler=Fifo(), rate_limiter=Queue(1)) as table:
        Path(said).touch()
        return f"{table.sample(1, timeout=20)}, {table.is_shut_down}, {table.sample(1, timeout=0)}"


def insert_into_table(url: str, said: str) -> str:
    with Table(url, "replay", sampler=Fifo(), rate_limiter=Queue(1)) as table:
        Path(said).touch()
        try:
            return f"stored {table.insert('second', 2, timeout=20)}"
        except (PutTimeout, StoreClosed) as error:
            return type(error).__name__


def shut_down_while(
    url: str, processes: ProcessPoolExecutor, said: Path, role: Callable[[str, str], str], *, full: bool
) -> str:
    with Table(url, "replay", sampler=Fifo(), rate_limiter=Queue(1)) as table:
        if full:
            table.insert("first", 1)
        other = processes.submit(role, url, str(said))
        waits(said, other)
        table.shutdown()
        assert table.is_shut_down
        assert table.sample(1) is None
        with pytest.raises(StoreClosed):
            table.insert("third", 3)
        return other.result(PATIENCE_S)


def test_a_shutdown_ends_the_wait_of_a_sampler_in_another_process(
    url: str, processes: ProcessPoolExecutor, tmp_path: Path
) -> None:
    assert shut_down_while(url, processes, tmp_path / "waits", sample_from_table, full=False) == "None, True, None"


def test_a_shutdown_ends_the_wait_of_an_insert_in_another_process(
    url: str, processes: ProcessPoolExecutor, tmp_path: Path
) -> None:
    assert shut_down_while(url, processes, tmp_path / "waits", insert_into_table, full=True) == "StoreClosed"


def test_a_table_that_is_opened_after_a_shutdown_works(url: str) -> None:
    with Table(url, "replay", sampler=Fifo(), rate_limiter=Queue(1)) as table:
        table.insert("first", 1)
        table.shutdown()
    with Table(url, "replay", sampler=Fifo(), rate_limiter=Queue(1)) as table:
        samples: Any = table.sample(1, timeout=0)
        assert [sample.group for sample in samples] == [1]
