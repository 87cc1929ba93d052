"""Traps that stores built on SQL fall into, each with the smallest test that shows it.

Numbers are those of the project's list of traps. T16 (many processes create the tables at once) is in
`tests/migration/test_opening.py`; T11 and T23 come with client keys.
"""

import asyncio
import contextlib
import enum
import math
import os
import pickle
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest
from sqlalchemy import event, select
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay import ReplayBuffer, RolloutState, Status
from sqlreplay.errors import BadArgument, QueryError
from sqlreplay.groups import PutRules
from sqlreplay.query import matches, parse_query
from sqlreplay.store import NewGroup
from sqlreplay.store.rows import insert_groups
from sqlreplay.store.tables import groups


def state(number: int, **fields: Any) -> RolloutState:
    """A sample that has been answered."""
    defaults: dict[str, Any] = {
        "message": [{"role": "user", "content": f"prompt {number}"}],
        "prompt_ids": [1, 2],
        "response": "r",
        "response_ids": [5, 6],
        "logprobs": [0.1, 0.2],
        "response_mask": [1, 1],
        "status": Status.COMPLETED,
    }
    return RolloutState(rollout_id=number, **{**defaults, **fields})


def numbers_of(taken: list[list[dict[str, Any]]]) -> list[int]:
    return [items[0]["number"] for items in taken]


def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


async def on_store(buffer: ReplayBuffer[Any], work: Callable[[AsyncConnection], Any], *, write: bool = False) -> Any:
    """Run statements on the buffer's own connections, as its verbs do."""
    thread = buffer.joined_thread()
    database = thread.store.database
    return await thread.call(lambda: (database.write if write else database.read)(work))


async def execute(url: str, statement: str) -> list[Any]:
    """Run one statement on a connection that is not the library's."""
    if is_sqlite(url):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()
    session = await asyncpg.connect(url)
    try:
        return list(await session.fetch(statement))
    finally:
        await session.close()


@asynccontextmanager
async def spying(buffer: ReplayBuffer[Any]) -> AsyncIterator[list[str]]:
    """Collect what the store does meanwhile: statements, COMMIT and ROLLBACK."""
    seen: list[str] = []
    listeners = {
        "before_cursor_execute": lambda _c, _cursor, sql, *_: seen.append(sql),
        "commit": lambda _: seen.append("COMMIT"),
        "rollback": lambda _: seen.append("ROLLBACK"),
    }
    engine = buffer.joined_thread().store.database.engine
    assert engine is not None
    for name, listener in listeners.items():
        event.listen(engine.sync_engine, name, listener)
    try:
        yield seen
    finally:
        for name, listener in listeners.items():
            event.remove(engine.sync_engine, name, listener)


async def test_t01_a_writer_that_reads_first_does_not_fail(url: str) -> None:
    """A deferred transaction that reads and then writes fails when another writer came between. On SQLite the other
    has to wait; on Postgres it goes ahead."""
    async with (
        ReplayBuffer(url, item_type=dict) as first,
        ReplayBuffer(url, item_type=dict, pool_size=4) as second,
    ):
        await first.put([{"number": 1}], "math")
        selected, go_on = threading.Event(), threading.Event()
        attempts = []

        async def select_then_delete(connection: AsyncConnection) -> int:
            attempts.append(1)
            (uid,) = (await connection.execute(select(groups.c.uid))).scalars().all()
            selected.set()
            await asyncio.to_thread(go_on.wait, 10)
            return (await connection.execute(groups.delete().where(groups.c.uid == uid))).rowcount

        deleting = asyncio.create_task(on_store(first, select_then_delete, write=True))
        await asyncio.to_thread(selected.wait, 10)
        putting = asyncio.create_task(second.put([{"number": 2}], "math"))
        if is_sqlite(url):
            await asyncio.sleep(0.2)
            assert not putting.done()
        else:
            await asyncio.wait_for(asyncio.shield(putting), 10)
        go_on.set()
        assert await deleting == 1
        assert await putting == 2
        assert len(attempts) == 1
        assert numbers_of(await second.get(9, "math", "completed")) == [2]


async def test_t02_every_pooled_connection_has_the_pragmas(sqlite_url: str) -> None:
    """SQLite only: pragmas belong to a connection, so setting them once leaves the rest of the pool without."""
    async with ReplayBuffer(sqlite_url, item_type=dict, pool_size=5, busy_timeout_s=7) as buffer:
        thread = buffer.joined_thread()
        engine = thread.store.database.engine
        assert engine is not None

        async def look() -> list[tuple[Any, ...]]:
            async with AsyncExitStack() as stack:
                connections = [await stack.enter_async_context(engine.connect()) for _ in range(5)]
                names = ("busy_timeout", "journal_mode", "synchronous", "foreign_keys")
                return [
                    tuple([(await each.exec_driver_sql(f"PRAGMA {name}")).scalar() for name in names])
                    for each in connections
                ]

        assert await thread.call(look) == [(7000, "wal", 1, 1)] * 5


async def test_t03_never_takes_more_than_asked(url: str) -> None:
    """A limit inside a subquery may be run once for each row of a nested loop. Two buffers at once, so that rows are
    locked; hash and merge joins are off, so that the loop is what Postgres chooses."""
    if not is_sqlite(url):
        name = url.partition("?")[0].rpartition("/")[2]
        for join in ("hashjoin", "mergejoin"):
            await execute(url, f"ALTER DATABASE {name} SET enable_{join} = off")
    async with (
        ReplayBuffer(url, item_type=dict) as first,
        ReplayBuffer(url, item_type=dict, pool_size=4) as second,
    ):
        for number in range(5):
            await first.put([{"number": number}], "math")
        for _ in range(100):
            taken = await asyncio.gather(*(each.get(1, "math", "completed") for each in (first, second)))
            assert [len(groups_taken) for groups_taken in taken] == [1, 1]
            assert await first.size() == 3
            for items in (*taken[0], *taken[1]):
                await first.put(items, "math")


@pytest.mark.parametrize("policy", ["fifo", "staleness"])
async def test_t04_order_is_not_that_of_the_pages(url: str, policy: str) -> None:
    """RETURNING gives rows as they lie in the file. After deletes, new rows lie in old places."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choice = random.Random(seed)
    async with ReplayBuffer(url, item_type=dict, policy=policy) as buffer:
        steps = {number: choice.randrange(5) for number in range(200)}

        async def put(number: int) -> int | None:
            items = [{"number": number, "response_ids": [1], "response_model_steps": [steps[number]]}]
            return await buffer.put(items, "math")

        uids = {number: await put(number) for number in range(100)}
        gone = choice.sample(range(100), 50)
        await buffer.delete([uids[number] for number in gone])
        if not is_sqlite(url):
            await execute(url, "VACUUM sqlreplay_groups")
        for number in range(100, 200):
            await put(number)
        left = [number for number in range(200) if number not in gone]
        if policy == "staleness":
            left.sort(key=lambda number: (steps[number], number))
        assert numbers_of(await buffer.get(100, "math", "completed")) == left[:100]
        assert numbers_of(await buffer.get(100, "math", "completed")) == left[100:]


async def test_t05_a_uid_is_never_given_again(url: str) -> None:
    """SQLite's plain integer key gives a deleted last id to the next row, also after the file was closed."""
    async with ReplayBuffer(url, item_type=dict) as buffer:
        first = await buffer.put([{"number": 1}], "math")
        second = await buffer.put([{"number": 2}], "math")
        assert await buffer.delete([second]) == 1
        third = await buffer.put([{"number": 3}], "math")
        assert len(await buffer.get(9, "math", "completed")) == 2
    async with ReplayBuffer(url, item_type=dict) as buffer:
        fourth = await buffer.put([{"number": 4}], "math")
    assert first < second < third < fourth  # type: ignore[operator]


async def test_t06_a_group_that_commits_late_is_not_skipped(postgres_url: str) -> None:
    """Postgres only, as SQLite has one writer: a uid may be drawn before another and be committed after it. A reader
    that goes by "later than the last one I saw" would never see it."""
    async with ReplayBuffer(postgres_url, item_type=dict) as buffer:
        await buffer.delete([await buffer.put([{"number": 0}], "math")])  # type: ignore[list-item]
        store = buffer.joined_thread().store
        draft = buffer.form.draft([{"number": 1}], PutRules())
        parts = buffer.form.codec.prepare(draft.items, draft.numbers.steps).finish()
        columns = {**draft.columns(), "priority": 1.0, "meta": None}
        late = NewGroup("math", draft.status, parts, columns)
        inserted, go_on = threading.Event(), threading.Event()

        async def insert_late(connection: AsyncConnection) -> list[Any]:
            done = await insert_groups(connection, store.backend, await store.run("default"), [late])
            inserted.set()
            await asyncio.to_thread(go_on.wait, 10)
            return done.outcomes

        inserting = asyncio.create_task(on_store(buffer, insert_late, write=True))
        await asyncio.to_thread(inserted.wait, 10)
        early_uid = await buffer.put([{"number": 2}], "math")
        assert numbers_of(await buffer.get(9, "math", "completed")) == [2]
        go_on.set()
        (late_uid,) = await inserting
        assert early_uid is not None
        assert late_uid < early_uid
        assert numbers_of(await buffer.get(9, "math", "completed")) == [1]


async def test_t07_lists_may_be_longer_than_the_parameters_of_a_statement(url: str) -> None:
    """SQLite allows 32,766 parameters and Postgres 32,767. A list of uids may be longer; a query says how long its
    lists may be."""
    async with ReplayBuffer(url, item_type=dict) as buffer:
        for number in range(3):
            await buffer.put([{"number": number}], "math")
        many = list(range(2, 40_002))
        assert await buffer.count_where({"uid": {"$in": many[:10_000]}}) == 2
        assert await buffer.count_where({"uid": {"$not_in": many[:10_000]}}) == 1
        lists = [{"uid": {"$in": many[start : start + 10_000]}} for start in range(0, 40_000, 10_000)]
        assert await buffer.count_where({"$or": lists[:2]}) == 2
        for too_long in ({"uid": {"$in": many}}, {"$or": lists}):
            with pytest.raises(QueryError, match="split the query"):
                await buffer.count_where(too_long)
        assert await buffer.delete(many) == 2
        assert await buffer.size() == 1


OPERATIONS: list[dict[str, Any]] = [
    {"$eq": "a"},
    {"$ne": "a"},
    {"$gt": "a"},
    {"$gte": "a"},
    {"$lt": "b"},
    {"$lte": "a"},
    {"$in": ["a"]},
    {"$not_in": ["a"]},
    {"$between": ["a", "b"]},
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: next(iter(operation)))
async def test_t08_a_missing_value_means_the_same_in_sql_and_in_python(url: str, operation: dict[str, Any]) -> None:
    """In SQL a comparison with NULL is neither true nor false, so `!=` and NOT would drop the row."""
    rows: list[dict[str, Any]] = [{"meta": {"source": "a"}}, {"meta": {"source": "b"}}, {"meta": {}}]
    async with ReplayBuffer(url, item_type=dict) as buffer:
        for number, row in enumerate(rows):
            await buffer.put([{"number": number}], "math", meta=row["meta"])
        for query in ({"meta.source": operation}, {"$not": {"meta.source": operation}}):
            expected = [number for number, row in enumerate(rows) if matches(parse_query(query), row)]
            assert [found.item[0]["number"] for found in await buffer.find(query)] == expected


async def test_t09_one_buffer_serves_many_tasks(url: str) -> None:
    """A session or connection shared by concurrent tasks mixes up their statements."""
    async with ReplayBuffer(url, item_type=dict) as buffer:
        uids = await asyncio.gather(*(buffer.put([{"number": number}], "math") for number in range(20)))
        assert len(set(uids)) == 20
        results = await asyncio.gather(
            *(buffer.get(2, "math", "completed") for _ in range(10)),
            *(buffer.count("math", "completed") for _ in range(10)),
        )
        assert sorted(number for taken in results[:10] for number in numbers_of(taken)) == list(range(20))


async def test_t10_cancelled_calls_leave_nothing_behind(url: str) -> None:
    """Cancelled between any two steps, a call gives back its connection and its locks, and loses no group."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choice = random.Random(seed)
    async with ReplayBuffer(url, item_type=dict) as buffer:
        acknowledged: set[int] = set()
        started: set[int] = set()
        taken: list[int] = []

        async def one(number: int) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(choice.uniform(0, 0.02)):
                    if number % 2:
                        started.add(number)
                        await buffer.put([{"number": number}], "math")
                        acknowledged.add(number)
                    elif number % 10 == 0:
                        await buffer.refresh_staleness(task_stale_thresholds={"math": 5}, current_train_step=1)
                    else:
                        taken.extend(numbers_of(await buffer.get(1, "math", "completed")))

        for start in range(0, 500, 10):
            await asyncio.gather(*(one(number) for number in range(start, start + 10)))
        await settled(buffer)
        await no_transaction_is_open(url)
        taken += numbers_of(await buffer.get(1000, "math", "completed"))
        assert len(taken) == len(set(taken))
        assert acknowledged <= set(taken) <= started


async def settled(buffer: ReplayBuffer[Any]) -> None:
    """Wait until the store has finished what cancelled callers left it."""
    pool = buffer.joined_thread().store.database.engine.sync_engine.pool  # type: ignore[union-attr]
    quiet_since = time.monotonic()
    deadline = quiet_since + 10
    while time.monotonic() - quiet_since < 0.2:
        if pool.checkedout() or buffer.joined_thread()._tasks:  # type: ignore[attr-defined]
            quiet_since = time.monotonic()
            assert quiet_since < deadline, f"{pool.status()}"
        await asyncio.sleep(0.01)


async def no_transaction_is_open(url: str) -> None:
    """Ask the database itself. Bytes are freed a moment after a take: what is still open after a while was left."""
    deadline = time.monotonic() + 5
    while found := await open_transactions(url):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.02)


async def open_transactions(url: str) -> list[Any]:
    """SQLite can empty its journal only when no other connection reads or writes."""
    if is_sqlite(url):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0)
        try:
            (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return ["a connection holds the journal"] if busy else []
        finally:
            connection.close()
    sessions = "FROM pg_stat_activity WHERE application_name = 'sqlreplay' AND datname = current_database()"
    return [
        *await execute(url, f"SELECT state, query {sessions} AND (state <> 'idle' OR xact_start IS NOT NULL)"),
        *await execute(url, f"SELECT * FROM pg_locks WHERE pid IN (SELECT pid {sessions})"),
    ]


REFRESH_UNTIL_TOLD = """
import asyncio, sys
from sqlreplay import ReplayBuffer

async def main():
    async with ReplayBuffer(sys.argv[1], item_type=dict) as buffer:
        print("ready", flush=True)
        for step in range(1, int(sys.argv[2])):
            await buffer.refresh_staleness(task_stale_thresholds={"math": 1}, current_train_step=step)

asyncio.run(main())
"""


async def test_t12_another_process_refreshes_while_this_one_takes(url: str) -> None:
    """A lock inside one process keeps no other out: a group is taken as completed or as expired, never both."""
    rounds = 120
    async with ReplayBuffer(url, item_type=dict) as buffer:
        for number in range(3 * rounds):
            items = [
                {
                    "number": number,
                    "status": "completed",
                    "response_ids": [1],
                    "response_model_steps": [number // 3],
                }
            ]
            await buffer.put(items, "math")
        refresher = await asyncio.create_subprocess_exec(
            sys.executable, "-c", REFRESH_UNTIL_TOLD, url, str(rounds), stdout=asyncio.subprocess.PIPE
        )
        assert refresher.stdout is not None
        assert await refresher.stdout.readline() == b"ready\n"
        completed, expired = [], []
        while refresher.returncode is None:
            completed += await buffer.get(1, "math", "completed")
            expired += await buffer.get(2, "math", "expired")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(refresher.wait()), 0.001)
        assert refresher.returncode == 0
        completed += await buffer.get(9999, "math", "completed")
        expired += await buffer.get(9999, "math", "expired")
    refresher._transport.close()  # type: ignore[attr-defined]
    assert sorted(numbers_of(completed) + numbers_of(expired)) == list(range(3 * rounds))
    assert completed
    assert expired
    assert all(items[0]["status"] == "completed" and items[0]["response_ids"] == [1] for items in completed)
    assert all(items[0]["status"] == "expired" and items[0]["response_ids"] == [] for items in expired)


async def test_t13_counting_and_refreshing_read_no_payload(url: str) -> None:
    """Payloads may be megabytes each: only taking and finding may name their table."""
    async with ReplayBuffer(url, item_type=dict) as buffer:
        for number in range(4):
            items = [{"number": number, "status": "completed", "response_ids": [1], "response_model_steps": [number]}]
            await buffer.put(items, "math")
        async with spying(buffer) as seen:
            assert await buffer.count("math", "completed") == 4
            assert await buffer.count_statuses(["math", "code"], ["completed", "expired"])
            assert await buffer.is_ready({"math": 4})
            assert await buffer.size() == 4
            assert await buffer.count_where({"num_tokens": {"$gte": 0}}) == 4
            assert await buffer.stats()
            expired = await buffer.refresh_staleness(task_stale_thresholds={"math": 2}, current_train_step=4)
            assert expired == {"math": 2}
        assert len(seen) >= 7
        assert [sql for sql in seen if "sqlreplay_payloads" in sql] == []


async def test_t14_refresh_writes_no_payload(url: str) -> None:
    """A status in the same row as its bytes would write them all again: 300 groups of 300 kB are 90 MB."""
    async with ReplayBuffer(url, item_type=dict) as buffer:
        for number in range(300):
            items = [
                {
                    "number": number,
                    "status": "completed",
                    "response_ids": [1],
                    "response_model_steps": [0],
                    "body": os.urandom(300_000),
                }
            ]
            await buffer.put(items, "math")
        if is_sqlite(url):
            await execute(url, "PRAGMA wal_checkpoint(TRUNCATE)")
            before = 0
        else:
            before = (await execute(url, "SELECT pg_current_wal_insert_lsn() - '0/0' AS place"))[0]["place"]
        expired = await buffer.refresh_staleness(task_stale_thresholds={"math": 1}, current_train_step=9)
        assert expired == {"math": 300}
        if is_sqlite(url):
            after = os.path.getsize(url.removeprefix("sqlite:///") + "-wal")
            assert after > 0
        else:
            after = (await execute(url, "SELECT pg_current_wal_insert_lsn() - '0/0' AS place"))[0]["place"]
        assert after - before < 5_000_000


async def test_t15_what_was_taken_needs_no_database(url: str) -> None:
    """Objects that load their attributes when asked fail once the row or the connection is gone."""
    put = state(7, extra_fields={"deep": {"list": [1, 2.5, None]}})
    async with ReplayBuffer(url) as buffer:
        await buffer.put([put], "math")
        (found,) = await buffer.find()
        ((taken,),) = await buffer.get(1, "math", Status.COMPLETED)
    assert taken.model_dump() == put.model_dump() == found.item[0].model_dump()
    assert (found.task_name, found.status, found.staleness, found.timestamp_id) == (
        "math",
        Status.COMPLETED,
        0,
        found.uid,
    )


async def test_t17_in_memory_is_one_database() -> None:
    """Each new connection to memory is an empty database of its own."""
    async with ReplayBuffer("sqlite://", item_type=dict) as buffer:
        await asyncio.create_task(buffer.put([{"number": 1}], "math"))
        counts = await asyncio.gather(*(asyncio.create_task(buffer.count("math", "completed")) for _ in range(20)))
        assert counts == [1] * 20
        assert await asyncio.to_thread(len, buffer) == 1
        async with ReplayBuffer("sqlite://", item_type=dict) as other:
            assert await other.size() == 0


FORK = """
import asyncio, os, sys
from sqlreplay import ReplayBuffer

buffer = ReplayBuffer(sys.argv[1], item_type=dict, run="fork")

async def use(side):
    for number in range(50):
        await buffer.put([{"side": side, "number": number}], side)
        ((item,),) = await buffer.get(1, side, "completed")
        assert item == {"side": side, "number": number}, item
    await buffer.put([{"pid": os.getpid()}], "left")
    await asyncio.sleep(0.5)

asyncio.run(buffer.size())
child = os.fork()
asyncio.run(use("parent" if child else "child"))
buffer.close_and_wait()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""


async def test_t18_both_sides_of_a_fork_work(url: str) -> None:
    """A connection that two processes share mixes their answers. The server sees each side's own."""
    running = asyncio.create_task(
        asyncio.to_thread(subprocess.run, [sys.executable, "-c", FORK, url], capture_output=True, text=True, timeout=60)
    )
    sessions = 0
    query = (
        "SELECT count(*) AS sessions FROM pg_stat_activity WHERE application_name = 'sqlreplay' "
        "AND datname = current_database()"
    )
    while not running.done():
        if not is_sqlite(url):
            sessions = max(sessions, (await execute(url, query))[0]["sessions"])
        await asyncio.sleep(0.02)
    done = await running
    assert done.returncode == 0, done.stderr
    assert sessions >= (0 if is_sqlite(url) else 2)
    async with ReplayBuffer(url, item_type=dict, run="fork") as buffer:
        left = await buffer.get(9, "left", "completed")
        assert len({items[0]["pid"] for items in left}) == 2
        assert await buffer.size() == 0


UNPICKLE = """
import asyncio, pickle, sys

async def main():
    async with pickle.loads(bytes.fromhex(sys.argv[1])) as buffer:
        print(await buffer.get(1, "math", "completed"))

asyncio.run(main())
"""


async def test_t18_a_pickled_buffer_opens_its_own_connections(url: str) -> None:
    async with ReplayBuffer(url, item_type=dict) as buffer:
        await buffer.put([{"number": 1}], "math")
        command = [sys.executable, "-c", UNPICKLE, pickle.dumps(buffer).hex()]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
        assert done.stdout == "[[{'number': 1}]]\n", done.stderr
        assert await buffer.size() == 0


async def test_t19_order_does_not_go_by_the_clock(url: str) -> None:
    """A clock has ties and steps back: made to do both, first in is still first out."""
    async with ReplayBuffer(url, item_type=dict) as buffer:
        await asyncio.gather(*(buffer.put([{"number": number}], "math") for number in range(300)))
        uids = {found.item[0]["number"]: found.uid for found in await buffer.find()}
        await execute(url, "UPDATE sqlreplay_groups SET created_at = CASE WHEN uid % 2 = 0 THEN 1 ELSE 1000 - uid END")
        taken = [uids[number] for number in numbers_of(await buffer.get(300, "math", "completed"))]
        assert taken == sorted(uids.values())


@pytest.mark.parametrize(
    "awkward", ["a\x00b", "lone \ud800 surrogate", "\U0001f600 é 世"], ids=["nul", "lone", "plain"]
)
async def test_t20_any_text_a_model_writes_comes_back(url: str, awkward: str) -> None:
    """NUL has no place in Postgres text, and a lone surrogate in neither. In bytes both are welcome; in names, which
    the databases compare, both refuse them alike."""
    put = state(1, message=[{"role": "user", "content": awkward}], response=awkward, error_msg=awkward)
    async with ReplayBuffer(url) as buffer:
        await buffer.put([put], "math")
        ((taken,),) = await buffer.get(1, "math", Status.COMPLETED)
        assert taken.model_dump() == put.model_dump()
        if awkward.endswith("世"):
            await buffer.put([put], awkward, meta={"text": awkward})
            assert await buffer.count(awkward, Status.COMPLETED) == 1
        else:
            for call in (
                buffer.put([put], awkward),
                buffer.put([put], "math", meta={"text": awkward}),
                buffer.count(awkward, Status.COMPLETED),
            ):
                with pytest.raises(BadArgument):
                    await call
            assert await buffer.size() == 0


async def test_t21_any_number_comes_back(url: str) -> None:
    """JSON has no NaN and no infinity, and some of its readers make floats of large integers. Payloads are not JSON;
    meta is, and refuses what would not come back."""
    reward = {"score": float("nan"), "low": float("-inf"), "large": 2**63, "huge": -(10**30), "zero": -0.0}
    async with ReplayBuffer(url) as buffer:
        await buffer.put([state(1, reward=reward)], "math")
        ((taken,),) = await buffer.get(1, "math", Status.COMPLETED)
        assert math.isnan(taken.reward.pop("score"))
        assert math.copysign(1, taken.reward["zero"]) == -1
        assert taken.reward == {name: value for name, value in reward.items() if name != "score"}
        for value in (float("nan"), float("inf"), 2**63):
            with pytest.raises(BadArgument):
                await buffer.put([state(2)], "math", meta={"number": value})
        await buffer.put([state(3)], "math", meta={"number": 2**63 - 1})
        assert await buffer.count_where({"meta.number": 2**63 - 1}) == 1
        assert await buffer.size() == 1


class RenamedStatus(enum.Enum):
    """The same statuses under other names, and one more."""

    DONE = "completed"
    OUT = "expired"
    QUARANTINED = "quarantined"


async def test_t22_a_status_is_stored_by_its_value(url: str) -> None:
    """A stored ordinal or member name means something else once the enum changes."""
    async with ReplayBuffer(url, item_type=dict) as buffer:
        for number in range(2):
            await buffer.put([{"number": number}], "math")
        stored = await execute(url, "SELECT DISTINCT status FROM sqlreplay_groups")
        assert [row[0] for row in stored] == ["completed"]
    async with ReplayBuffer(url, item_type=dict, status_type=RenamedStatus) as buffer:
        assert await buffer.count("math", RenamedStatus.DONE) == 2
        found = await buffer.find()
        assert [item.status for item in found] == [RenamedStatus.DONE] * 2
        found[1].status = RenamedStatus.QUARANTINED
        assert await buffer.update(found[1:]) == 1
    async with ReplayBuffer(url, item_type=dict) as buffer:
        assert [item.status for item in await buffer.find()] == [Status.COMPLETED, "quarantined"]
        assert numbers_of(await buffer.get(9, "math", Status.COMPLETED)) == [0]
        assert await buffer.size() == 1


async def test_t24_no_call_leaves_a_transaction_open(url: str) -> None:
    """One left open by a mere count keeps Postgres from vacuuming and SQLite from emptying its journal."""
    async with ReplayBuffer(url, item_type=dict) as buffer:
        items = [{"number": 1, "status": "completed", "response_ids": [1], "response_model_steps": [0]}]
        calls: list[Callable[[], Any]] = [
            lambda: buffer.put(items, "math"),
            lambda: buffer.count("math", "completed"),
            lambda: buffer.count_statuses(["math"], ["completed"]),
            lambda: buffer.is_ready({"math": 1}),
            lambda: buffer.size(),
            lambda: buffer.find({"task_name": "math"}),
            lambda: buffer.count_where({"uid": 1}),
            lambda: buffer.stats(),
            lambda: buffer.take_batch({"math": 5}, timeout=0.01, require_full=True),
            lambda: buffer.take_batch({"math": 5}, max_tokens=0),
            lambda: buffer.find({"no_such_field": 1}),
            lambda: buffer.refresh_staleness(task_stale_thresholds={"math": 2}, current_train_step=1),
            lambda: buffer.take_batch({"math": 1}, max_tokens=100),
            lambda: buffer.get(1, "nothing here", "completed"),
            lambda: buffer.delete([1]),
        ]
        for call in calls:
            with contextlib.suppress(BadArgument, TimeoutError):
                await call()
            await no_transaction_is_open(url)


async def test_t25_tables_may_change_under_an_open_store(url: str) -> None:
    """Prepared statements are remembered, and a changed table makes them invalid: another process that upgrades must
    not break this one."""
    async with ReplayBuffer(url, item_type=dict) as buffer:

        async def use() -> None:
            items = [{"number": 1, "status": "completed", "response_ids": [1], "response_model_steps": [0]}]
            await asyncio.gather(*(buffer.put(items, "math") for _ in range(8)))
            assert await buffer.count("math", "completed") == 8
            assert len(await buffer.find({"task_name": "math"})) == 8
            assert len(await buffer.get(4, "math", "completed")) == 4
            refreshed = await buffer.refresh_staleness(task_stale_thresholds={"math": 1}, current_train_step=9)
            assert refreshed == {"math": 4}
            assert len(await buffer.get(4, "math", "expired")) == 4
            assert await buffer.size() == 0

        for _ in range(8):  # Postgres settles on a plan after some uses
            await use()
        for table in ("groups", "payloads", "tasks", "refreshes", "runs"):
            await execute(url, f"ALTER TABLE sqlreplay_{table} ADD COLUMN later_addition text")
            await use()
            await execute(url, f"ALTER TABLE sqlreplay_{table} DROP COLUMN later_addition")
            await use()


async def test_t26_bytes_are_read_after_the_claim_has_committed(url: str) -> None:
    """Reading 64 MB inside the claim would hold its locks all the while; on SQLite nobody could write."""
    async with ReplayBuffer(url, item_type=dict) as buffer:
        await asyncio.gather(
            *(buffer.put([{"number": number, "body": os.urandom(2**20)}], "math") for number in range(64))
        )
        async with spying(buffer) as seen:
            taken, _ = await buffer.take_batch({"math": 64})
        assert sorted(numbers_of(taken["math"])) == list(range(64))
        assert all(len(items[0]["body"]) == 2**20 for items in taken["math"])
        steps = [
            name
            for sql in seen
            for name in ("/* claim */", "/* claim_remove */", "COMMIT", "/* read_parts */")
            if name in sql
        ]
        committed = steps.index("COMMIT")
        assert steps[:committed] == ["/* claim */", "/* claim_remove */"]
        reads = [step for step in steps[committed:] if step == "/* read_parts */"]
        assert reads
        assert not any("sqlreplay_payloads" in sql for sql in seen[: seen.index("COMMIT")])
