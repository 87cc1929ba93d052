"""SIGKILL at random moments in the verbs of a table: its books balance, and what was acknowledged is accounted for."""

import asyncio
import itertools
import json
import multiprocessing
import os
import random
import signal
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import asyncpg
import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection
from workers import make_group, number_of, wait_until

from sqlreplay import (
    BlockingReplayBuffer,
    Fifo,
    MinHeap,
    Prioritized,
    SampleTimeout,
    Status,
    Table,
    TableConfig,
    Uniform,
)
from sqlreplay.policy import Selector
from sqlreplay.store import Standing
from sqlreplay.store.race import decode
from sqlreplay.store.tables import groups, payloads

R = TypeVar("R")
TASK = "math"
ROUNDS, CAPACITY, MOST_DRAWS = 4, 40, 3
SAMPLED, TAKEN, KEYS = 4, 2, 3
REMOVERS: list[Selector] = [Fifo(), Uniform(), MinHeap()]
PRIORITIES = [0.0, 0.1, 0.7, 1.0, 3.3, 1e9]
PATIENCE_S = 60


class Journal:
    """What is about to be done and what came of it, a line each, written before its worker goes on."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._numbers = itertools.count()

    def act(self, verb: str, asked: Any, do: Callable[[], R], told: Callable[[R], Any]) -> R:
        number = next(self._numbers)
        self._write([number, verb, asked])
        result = do()
        self._write([number, told(result)])
        return result

    def _write(self, line: list[Any]) -> None:
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def close(self) -> None:
        os.close(self._file)


@dataclass
class Act:
    """A call of a worker. One that was killed before it was told the outcome has `is_told=False`."""

    verb: str
    asked: Any
    told: Any = None
    is_told: bool = False


def read_journal(path: Path) -> list[Act]:
    acts: dict[int, Act] = {}
    for line in path.read_text().splitlines(keepends=True) if path.exists() else []:
        if line.endswith("\n"):
            number, *rest = json.loads(line)
            if number in acts:
                [acts[number].told] = rest
                acts[number].is_told = True
            else:
                acts[number] = Act(*rest)
    return list(acts.values())


class Worker:
    """The verbs of one process, each of them journalled."""

    def __init__(self, url: str, config: TableConfig, path: Path, first: int, seed: int) -> None:
        self.buffer = BlockingReplayBuffer(url)
        self.table = Table(self.buffer, TASK, config.sampler, config.remover, config.max_size, config.max_times_sampled)
        self.journal = Journal(path)
        self.numbers = itertools.count(first)
        self.chance = random.Random(seed)

    def close(self) -> None:
        self.buffer.close()
        self.journal.close()

    def _insert(self, key: str | None, status: Status = Status.COMPLETED) -> None:
        number = next(self.numbers)
        priority = self.chance.choice(PRIORITIES) if status is Status.COMPLETED else 0.1
        group = make_group(number)
        for state in group:
            state.status = status

        def store() -> Any:
            if key is None:
                return self.buffer.put(group, TASK, priority=priority)
            return self.table.insert(key, group, priority)

        asked = {"number": number, "key": key, "priority": priority}
        self.journal.act("insert", asked, store, lambda uid: {"uid": int(uid), "evicted": list(uid.evicted)})

    def insert(self, lane: int) -> None:
        """New groups: with a key of their own, without one, and now and then one that cannot be sampled."""
        if lane == 0:
            self._insert(f"own {next(self.numbers)}")
        else:
            self._insert(None, self.chance.choice([Status.COMPLETED, Status.COMPLETED, Status.ABORTED]))
        time.sleep(0.005)

    def replace(self, lane: int) -> None:
        """A key belongs to one lane, so that its last group is known."""
        self._insert(f"shared {lane} {self.chance.randrange(KEYS)}")
        time.sleep(0.005)

    def draw(self, timeout: float) -> list[Any]:
        def draw() -> list[Any]:
            try:
                return self.table.sample(SAMPLED, timeout) or []
            except SampleTimeout:
                return []

        def told(samples: list[Any]) -> list[Any]:
            return [[info.uid, number_of(group), info.times_sampled] for group, info in samples]

        return self.journal.act("sample", SAMPLED, draw, told)

    def sample(self, lane: int) -> None:
        self.draw(timeout=0.05)
        time.sleep(0.01)

    def take(self, lane: int) -> None:
        status = self.chance.choice([Status.COMPLETED, Status.COMPLETED, Status.ABORTED])
        self.journal.act(
            "take",
            TAKEN,
            lambda: self.buffer.take_batch({TASK: TAKEN}, group_status=status)[0][TASK],
            lambda found: [number_of(group) for group in found],
        )
        time.sleep(0.01)

    def update(self, lane: int) -> None:
        """Priorities that nothing else has, for what is there and for one that never was."""
        there = [found.uid for found in self.buffer.find(limit=CAPACITY)]
        some = self.chance.sample(there, min(6, len(there)))
        priorities = {uid: next(self.numbers) / 3e6 for uid in some} | {10**15: 1.0}
        self.journal.act(
            "update",
            [[uid, priority] for uid, priority in priorities.items()],
            lambda: self.table.update_priorities(priorities),
            lambda unknown: unknown,
        )
        time.sleep(0.01)


LANES = {"insert": 3, "replace": 2, "sample": 1, "take": 1, "update": 1}


def work(role: str, url: str, config: TableConfig, path: Path, first: int, seed: int) -> None:
    """Do one thing in some threads until killed."""
    warnings.simplefilter("error")
    worker = Worker(url, config, path, first, seed)

    def go_on(lane: int) -> None:
        try:
            while True:
                getattr(worker, role)(lane)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    for lane in range(LANES[role]):
        Thread(target=go_on, args=(lane,)).start()


@contextmanager
def processes() -> Iterator[Callable[..., SpawnProcess]]:
    """Start processes that know nothing of this one; none of them outlives the block."""
    started: list[SpawnProcess] = []

    def start(role: Callable[..., None], *arguments: Any) -> SpawnProcess:
        process = multiprocessing.get_context("spawn").Process(target=role, args=arguments)
        process.start()
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.join()


def kill(process: SpawnProcess) -> None:
    assert process.exitcode is None, "it ended by itself; its errors are on stderr"
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def wait_for_the_server(url: str) -> None:
    """Postgres goes on with what a dead client had sent before it notices: wait until it did."""

    async def count() -> int:
        connection = await asyncpg.connect(url)
        try:
            query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            return int(await connection.fetchval(f"{query} AND backend_type = 'client backend'")) - 1
        finally:
            await connection.close()

    if not url.startswith("sqlite"):
        wait_until(lambda: asyncio.run(count()) == 0)


@dataclass
class Books:
    """A table as its task's row tells it, and as its groups do."""

    standing: Standing
    rows: list[Any]
    bytes_of: dict[int, int]
    contents: dict[int, Any]

    def counted(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self.standing).items() if name != "lot"}


def read_books(buffer: BlockingReplayBuffer[Any], task_name: str = TASK) -> Books:
    thread = buffer.unblocked.joined_thread()
    standing = thread.wait(thread.store.tables.standing("default", task_name))
    assert standing is not None

    async def look(connection: AsyncConnection) -> tuple[list[Any], dict[int, int]]:
        rows = await connection.execute(select(groups).where(groups.c.task_id == standing.id))
        sizes = select(payloads.c.payload_id, func.sum(func.length(payloads.c.body))).group_by(payloads.c.payload_id)
        return list(rows.all()), {row[0]: int(row[1]) for row in await connection.execute(sizes)}

    rows, bytes_of = thread.wait(thread.store.database.read(look))
    return Books(standing, rows, bytes_of, {found.uid: found.item for found in buffer.find({"task_name": task_name})})


def check_books(books: Books) -> None:
    standing, rows = books.standing, books.rows
    stream = [row for row in rows if row.status == "completed"]
    assert standing.size == len(rows) <= CAPACITY
    assert standing.size_bytes == sum(row.size_bytes for row in rows)
    assert standing.size_bytes == sum(books.bytes_of[row.payload_id] for row in rows)
    assert standing.stream_size == len(stream)
    assert Fraction(standing.weight_sum, 2**1074) == sum(Fraction(row.race_weight) for row in stream)
    assert standing.inserts - standing.deletes == standing.size
    for row in rows:
        assert row.status in ("completed", "aborted")
        assert row.lease_id is None
        assert row.evict_key is not None
        assert row.times_sampled < MOST_DRAWS
        assert (row.race_key is not None) == (row.race_weight is not None) == (row.status == "completed")
        if row.race_weight is not None:
            assert row.race_weight == row.priority
            number, is_behind = decode(row.race_key)
            assert is_behind == (row.race_weight == 0)
            assert number >= (standing.race.behind if is_behind else standing.race.time)


def check_acts(books: Books, acts: list[Act]) -> Counter[str]:
    """Every group that a worker was told of is stored, or another was told that it went; the rest is no more than
    what was in flight when workers were killed, and the counters say how much that was."""
    standing, rows = books.standing, books.rows
    in_flight = [act for act in acts if not act.is_told]
    inserts = [act for act in acts if act.verb == "insert"]
    told_inserts = [act for act in inserts if act.is_told]
    uid_of = {act.asked["number"]: act.told["uid"] for act in told_inserts}
    unsure = {act.asked["number"] for act in inserts if not act.is_told}
    evicted = [uid for act in told_inserts for uid in act.told["evicted"]]
    draws = [draw for act in acts if act.verb == "sample" and act.is_told for draw in act.told]
    taken = [number for act in acts if act.verb == "take" and act.is_told for number in act.told]

    drawn_out = [uid for uid, _, times in draws if times == MOST_DRAWS]
    gone = evicted + drawn_out + [uid_of[number] for number in taken if number in uid_of]
    assert [uid for uid, times in Counter(gone).items() if times > 1] == [], "went more than once"
    stored = {row.uid for row in rows}
    assert stored.isdisjoint(gone)
    assert {*taken, *(number for _, number, _ in draws)} <= {*uid_of, *unsure}, "nobody put these"
    assert max(Counter(taken).values(), default=0) <= 1, "taken more than once"
    assert max(Counter((number, times) for _, number, times in draws).values(), default=0) <= 1

    assert 0 <= standing.inserts - len(set(uid_of.values())) <= len(unsure)
    evicted_unseen = standing.evictions - len(evicted)
    assert 0 <= evicted_unseen <= len(unsure)
    drawn_unseen = standing.samples - len(draws) - len(taken)
    assert 0 <= drawn_unseen <= sum(act.asked for act in in_flight if act.verb in ("sample", "take"))
    taken_unsure = unsure.intersection(taken)
    removed_unseen = standing.deletes - len(gone) - len(taken_unsure)
    assert evicted_unseen <= removed_unseen <= evicted_unseen + drawn_unseen
    lost = set(uid_of.values()) - stored - set(gone)
    assert len(lost) <= removed_unseen + len(taken_unsure), f"acknowledged and not there: {sorted(lost)}"

    check_contents(books, acts, uid_of, Counter(number for _, number, _ in draws))
    replaced = len(uid_of) - len(set(uid_of.values()))
    updated = sum(act.verb == "update" and act.is_told for act in acts)
    return Counter(
        told=len(uid_of), evicted=len(evicted), replaced=replaced, drawn=len(draws), drawn_out=len(drawn_out)
    ) + Counter(taken=len(taken), updated=updated, in_flight=len(in_flight), lost=len(lost))


def check_contents(books: Books, acts: list[Act], uid_of: dict[int, int], drawn: Counter[int]) -> None:
    """What is stored is what was last acknowledged, or what was in flight after that."""
    asked_as = {act.asked["number"]: act.asked for act in acts if act.verb == "insert"}
    last_of_key: dict[str, list[int]] = defaultdict(list)
    updates: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    stored = {row.uid for row in books.rows}
    drawing = sum(act.verb == "sample" and not act.is_told for act in acts)
    for act in acts:
        if act.verb == "insert" and act.asked["key"] is not None:
            known = [] if act.is_told else last_of_key[act.asked["key"]]
            last_of_key[act.asked["key"]] = [*known, act.asked["number"]]
        if act.verb == "update":
            assert stored.isdisjoint(act.told or ())
            for uid, priority in act.asked:
                updates[uid].append((priority, act.is_told))
    for row in books.rows:
        number = number_of(books.contents[row.uid])
        asked = asked_as[number]
        assert row.client_key == asked["key"]
        assert uid_of.get(number, row.uid) == row.uid
        if row.client_key is not None:
            assert number in last_of_key[row.client_key]
        assert drawn[number] <= row.times_sampled <= drawn[number] + drawing
        possible = [asked["priority"]]
        is_replaced = (row.client_key or "").startswith("shared")
        for priority, is_told in updates[row.uid]:
            possible = [priority] if is_told and not is_replaced else [*possible, priority]
        assert row.priority in possible


def check_sampling(worker: Worker, books: Books) -> None:
    """A sample after all this has the probabilities that the stored weights say."""
    weights = {row.uid: row.race_weight for row in books.rows if row.race_weight is not None}
    total = sum(weights.values())
    assert len(weights) >= SAMPLED
    samples = worker.draw(timeout=PATIENCE_S)
    assert len({info.uid for _, info in samples}) == SAMPLED
    for group, info in samples:
        assert group == books.contents[info.uid]
        expected = weights[info.uid] / total if total else 1 / len(weights)
        assert info.probability == pytest.approx(expected, rel=1e-12)
        assert info.table_size == len(books.rows)


def test_processes_are_killed_at_random_moments_and_the_books_of_their_table_balance(
    url: str, tmp_path: Path, random_seed: int
) -> None:
    chance = random.Random(random_seed)
    config = TableConfig(Prioritized(1.0), chance.choice(REMOVERS), CAPACITY, MOST_DRAWS)
    starts = itertools.count(1)
    journals: list[Path] = []

    def settings_of(role: str) -> tuple[str, TableConfig, Path, int, int]:
        number = next(starts)
        journals.append(tmp_path / f"{number} {role}")
        return url, config, journals[-1], number * 10**6, chance.randrange(2**32)

    def check() -> Counter[str]:
        """Check, fill up the table, and check again that it works."""
        worker = Worker(*settings_of("own"))
        try:
            books = read_books(worker.buffer)
            check_books(books)
            seen = check_acts(books, [act for path in journals for act in read_journal(path)])
            for _ in range(CAPACITY - len(books.rows) + 5):
                worker.insert(lane=0)
            books = read_books(worker.buffer)
            check_books(books)
            check_sampling(worker, books)
        finally:
            worker.close()
        return seen

    check()
    with processes() as start:
        for _ in range(ROUNDS):
            running: dict[Path, SpawnProcess] = {}
            for role in LANES:
                settings = settings_of(role)
                running[journals[-1]] = start(work, role, *settings)
            for path, process in running.items():
                wait_until(lambda path=path, process=process: has_begun(path, process))  # type: ignore[misc]
            for process in chance.sample(list(running.values()), len(running)):
                time.sleep(chance.uniform(0, 0.3))
                kill(process)
            wait_for_the_server(url)
            seen = check()
            print(config.remover, dict(seen))
    for what in ("told", "evicted", "replaced", "drawn", "drawn_out", "taken", "updated", "in_flight"):
        assert seen[what], f"none {what}: this run showed nothing"


def has_begun(path: Path, process: SpawnProcess) -> bool:
    assert process.exitcode is None, "it ended by itself; its errors are on stderr"
    return any(act.is_told for act in read_journal(path))


def insert_into_queue(url: str, size: int, path: Path, key: str) -> None:
    journal = Journal(path)
    with Table.queue(url, "queue", size) as table:
        journal.act("insert", key, lambda: table.insert(key, key), int)


def sample_from_queue(url: str, size: int, path: Path, key: str) -> None:
    journal = Journal(path)
    with Table.queue(url, "queue", size) as table:
        journal.act("sample", key, lambda: table.sample(), lambda samples: [sample.group for sample in samples or []])


def waiting_three(
    start: Callable[..., SpawnProcess], role: Callable[..., None], url: str, folder: Path
) -> dict[Path, SpawnProcess]:
    """Start three processes and give them time to be deep in their wait."""
    paths = [folder / f"{role.__name__} {number}" for number in range(3)]
    waiting = {path: start(role, url, 2, path, path.name) for path in paths}
    wait_until(lambda: all(read_journal(path) for path in paths))
    time.sleep(0.3)
    assert not any(act.is_told for path in paths for act in read_journal(path))
    return waiting


def kill_two(waiting: dict[Path, SpawnProcess], chance: random.Random) -> tuple[Path, SpawnProcess]:
    """Kill all but one, which is returned."""
    first, second, left = chance.sample(list(waiting), 3)
    for path in (first, second):
        time.sleep(chance.uniform(0, 0.2))
        kill(waiting[path])
    return left, waiting[left]


def end(process: SpawnProcess) -> None:
    process.join(PATIENCE_S)
    assert process.exitcode == 0


def test_processes_killed_while_they_wait_to_insert_leave_nothing_and_the_other_goes_in(
    url: str, tmp_path: Path, random_seed: int
) -> None:
    chance = random.Random(random_seed)
    with (
        processes() as start,
        BlockingReplayBuffer(url, item_type=object) as buffer,
        Table.queue(buffer, "queue", 2) as table,
    ):
        table.insert("a", "a")
        table.insert("b", "b")
        before = read_books(buffer, "queue")
        waiting = waiting_three(start, insert_into_queue, url, tmp_path)
        left, process = kill_two(waiting, chance)
        after = read_books(buffer, "queue")
        assert after.counted() == before.counted()
        assert after.rows == before.rows
        assert after.bytes_of.keys() == {row.payload_id for row in after.rows}, "bytes of a group that never went in"

        first = table.sample(timeout=PATIENCE_S)
        end(process)
        found = [*(first or []), *(table.sample(2, timeout=PATIENCE_S) or [])]
        assert [sample.group for sample in found] == ["a", "b", left.name]
        info = table.info
        assert (info.size, info.inserts, info.samples, info.deletes) == (0, 3, 3, 3)


def test_processes_killed_while_they_wait_to_sample_leave_nothing_and_the_other_gets_all(
    url: str, tmp_path: Path, random_seed: int
) -> None:
    chance = random.Random(random_seed)
    with (
        processes() as start,
        BlockingReplayBuffer(url, item_type=object) as buffer,
        Table.queue(buffer, "queue", 2) as table,
    ):
        before = read_books(buffer, "queue")
        waiting = waiting_three(start, sample_from_queue, url, tmp_path)
        left, process = kill_two(waiting, chance)
        assert read_books(buffer, "queue").counted() == before.counted()

        table.insert("a", "a", timeout=PATIENCE_S)
        end(process)
        assert [act.told for act in read_journal(left)] == [["a"]]
        table.insert("b", "b", timeout=PATIENCE_S)
        assert [sample.group for sample in table.sample(timeout=PATIENCE_S) or []] == ["b"]
        info = table.info
        assert (info.size, info.inserts, info.samples, info.deletes) == (0, 2, 2, 2)
