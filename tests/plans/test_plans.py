"""Each hot statement walks an index at 100,000 rows, on both databases.

Verbs run for real; the statements they sent are then explained. SQLite is asked twice, as a store that was never
analysed (none is, unless its owner does it) and as one that was: a plan must not hang on statistics.
"""

import asyncio
import sqlite3
import uuid
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from explain import QueryPlan, Statement, explain, spying
from sqlalchemy.engine import URL

from sqlreplay import ReplayBuffer

ROWS = 100_000
TASKS = ("math", "code", "chat")
WAITING = ("fifo", "staleness")
COLUMNS = (
    "uid, task_id, status, stale_from_step, oldest_step, latest_step, token_fresh_step, staleness, refresh_number,"
    " priority, num_samples, num_tokens, size_bytes, created_at, payload_id, born_epoch, written_epoch"
)
# 1,000 steps, so that a threshold picks out as few rows as it does in a run
FILL = f"""
    INSERT INTO sqlreplay_groups ({COLUMNS})
    SELECT number, 1 + number % 3,
           CASE number / 3 % 3 WHEN 0 THEN 'completed' WHEN 1 THEN 'aborted' ELSE 'expired' END,
           1001 + number % 1000, 1000 + number % 1000, 1000 + number % 1000,
           CASE WHEN number % 2 = 0 THEN 1001 + number % 1000 END,
           0, 0, 1.0, 8, 4096, 100000, 0, number, 0, 0
    FROM numbers
"""
FILL_PAYLOADS = """
    INSERT INTO sqlreplay_payloads (payload_id, part, raw_size, checksum, body)
    SELECT uid, part, raw_size, checksum, body FROM sqlreplay_groups
    JOIN sqlreplay_payloads model ON model.payload_id = 1
    WHERE uid >= 10
"""


async def put_one_of_each_task(url: str) -> None:
    async with ReplayBuffer(url, item_type=dict) as buffer:
        for number, name in enumerate(TASKS, start=1):
            assert await buffer.put([{"any": "group"}], name) == number
        assert await buffer.delete([2, 3]) == 2


def in_a_thread(work: Coroutine[Any, Any, None]) -> None:
    """Give it a loop of its own, and show its errors: the tests' loop is not there yet."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(asyncio.run, work).result()


def fill_sqlite(path: Path, *, analyse: bool) -> str:
    in_a_thread(put_one_of_each_task(f"sqlite:///{path}"))
    connection = sqlite3.connect(path)
    numbers = f"WITH RECURSIVE numbers (number) AS (SELECT 10 UNION ALL SELECT number + 1 FROM numbers LIMIT {ROWS})"
    connection.execute(f"{numbers} {FILL}")
    connection.execute(FILL_PAYLOADS)
    connection.commit()
    if analyse:
        connection.execute("ANALYZE")
    connection.close()
    return f"sqlite:///{path}"


async def fill_postgres(url: str) -> None:
    await put_one_of_each_task(url)
    connection = await asyncpg.connect(url)
    numbers = f"WITH numbers AS (SELECT number FROM generate_series(10, {ROWS + 9}) AS series (number))"
    await connection.execute(FILL.replace("INSERT", f"{numbers} INSERT", 1))
    await connection.execute(FILL_PAYLOADS)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("SELECT setval('sqlreplay_groups_uid_seq', (SELECT max(uid) FROM sqlreplay_groups))")
    await connection.close()


@pytest.fixture(scope="session")
def postgres_plans_url(postgres_server: URL, postgres_template: str) -> Iterator[str]:
    name = f"sqlreplay_plans_{uuid.uuid4().hex[:8]}"
    maintenance = postgres_server.render_as_string(hide_password=False)
    url = postgres_server.set(database=name).render_as_string(hide_password=False)

    async def execute(statement: str) -> None:
        connection = await asyncpg.connect(maintenance)
        await connection.execute(statement)
        await connection.close()

    in_a_thread(execute(f"CREATE DATABASE {name} TEMPLATE {postgres_template}"))
    in_a_thread(fill_postgres(url))
    yield url
    in_a_thread(execute(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="session")
def sqlite_plans_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fill_sqlite(tmp_path_factory.mktemp("plans") / "replay.db", analyse=False)


@pytest.fixture(scope="session")
def analysed_sqlite_plans_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fill_sqlite(tmp_path_factory.mktemp("plans") / "replay.db", analyse=True)


@pytest.fixture(params=["sqlite", "analysed_sqlite", "postgres"])
def full_url(request: pytest.FixtureRequest) -> str:
    """A store with 100,000 groups of three tasks in three statuses; tests may take a few of them."""
    found: str = request.getfixturevalue(f"{request.param}_plans_url")
    return found


def named(statements: list[Statement], name: str) -> list[Statement]:
    found = [statement for statement in statements if statement.name == name]
    assert found, f"no statement {name!r} among {[statement.name for statement in statements]}"
    return found


async def explained(url: str, statement: Statement) -> list[QueryPlan]:
    """Return the plan for these parameters and, on Postgres, the one that a prepared statement may settle on."""
    plans = [await explain(url, statement)]
    if url.startswith("postgresql"):
        plans.append(await explain(url, statement, generic=True))
    return plans


async def claim_plans(url: str, policy: str) -> list[QueryPlan]:
    """Take from two tasks and return the plans of the claims; the deletes that follow go by primary key."""
    async with ReplayBuffer(url, item_type=dict, policy=policy) as buffer, spying(buffer) as statements:
        taken, counts = await buffer.take_batch({"math": 8, "code": 4})
        assert counts == {"math": 8, "code": 4}
        assert taken["math"][0] == [{"any": "group"}]
    for statement in named(statements, "claim_remove"):
        for plan in await explained(url, statement):
            assert "sqlreplay_groups" not in plan.scanned, plan.text
            assert "sqlreplay_payloads" not in plan.tables, plan.text
    claims = named(statements, "claim")
    assert len(claims) == 2
    return [plan for statement in claims for plan in await explained(url, statement)]


async def test_claim_by_staleness_walks_its_index(full_url: str) -> None:
    """The index has the rows in the order they are taken: a claim costs what it takes, not what is stored. A sort
    would read every waiting row of the task first."""
    for plan in await claim_plans(full_url, "staleness"):
        plan.expect(index="staleness")


@pytest.mark.parametrize("policy", ["fifo", "lifo"])
async def test_claim_by_uid_walks_its_index(full_url: str, policy: str) -> None:
    """As above. The primary key has the same order, but over all tasks: walking it reads the backlog of every other
    task and status on the way."""
    for plan in await claim_plans(full_url, policy):
        plan.expect(index="fifo")


@pytest.mark.parametrize("policy", ["fifo", "lifo"])
async def test_claim_by_uid_sorts_nothing(full_url: str, policy: str) -> None:
    """Whichever of the two it walks, the order comes from an index, and no payload is read."""
    for plan in await claim_plans(full_url, policy):
        assert plan.indexes & {"ix_sqlreplay_groups_fifo", "pk_sqlreplay_groups"}, plan.text
        assert "sqlreplay_groups" not in plan.scanned, plan.text
        assert "sqlreplay_payloads" not in plan.tables, plan.text
        assert plan.sorts == 0, plan.text


async def test_claim_with_a_query_walks_the_index_of_its_order(full_url: str) -> None:
    """A condition filters on the way along the index; the order still comes from it."""
    async with ReplayBuffer(full_url, item_type=dict, policy="staleness") as buffer, spying(buffer) as statements:
        await buffer.take_batch({"math": 4}, where={"num_tokens": {"$lte": 5000}, "meta.source": {"$ne": "web"}})
    for statement in named(statements, "claim"):
        (await explain(full_url, statement)).expect(index="staleness")


async def test_count_reads_a_range_of_an_index(full_url: str) -> None:
    """Counting one task and status reads that range of an index. Either order will do, as both hold the same rows;
    Postgres then reads no row at all."""
    async with ReplayBuffer(full_url, item_type=dict) as buffer, spying(buffer) as statements:
        assert await buffer.count("math", "completed") > 10_000
    (statement,) = named(statements, "count")
    for plan in await explained(full_url, statement):
        plan.expect(index=WAITING)
    if full_url.startswith("postgresql"):
        assert "Index Only Scan" in (await explain(full_url, statement)).text


async def test_is_ready_stops_at_the_number_asked(full_url: str) -> None:
    """It walks the index up to the number asked and stops: nothing is counted or sorted."""
    async with ReplayBuffer(full_url, item_type=dict) as buffer, spying(buffer) as statements:
        assert await buffer.is_ready({"math": 64, "code": 32})
        assert not await buffer.is_ready({"math": 64, "code": ROWS})
    for statement in named(statements, "is_ready"):
        for plan in await explained(full_url, statement):
            plan.expect(index=WAITING)
            assert "Aggregate" not in plan.text


@pytest.mark.parametrize("oldest", [900, 1003], ids=["nothing", "something"])
@pytest.mark.parametrize("retryable", [True, False], ids=["expire", "drop"])
async def test_refresh_looks_at_what_expires(full_url: str, oldest: int, retryable: bool) -> None:
    """What is past a threshold is a range of an index: a refresh costs what expires, not what is stored. Groups that
    do not age have an index of those not yet settled, which is empty as a rule."""
    async with ReplayBuffer(full_url, item_type=dict) as buffer, spying(buffer) as statements:
        expired = await buffer.refresh_staleness(
            task_stale_thresholds={"chat": 10},
            expired_groups_retryable_by_task={"chat": retryable},
            current_train_step=oldest + 10,
        )
        assert expired["chat"] < 200
    name = "refresh_expire" if retryable else "refresh_drop"
    for statement in named(statements, name):
        plan = await explain(full_url, statement)
        plan.expect(index="staleness")
    for statement in named(statements, "settle_ageless"):
        plan = await explain(full_url, statement)
        plan.expect(index="unseen_ageless")
    assert not any("sqlreplay_payloads" in each.sql for each in statements if each.name != "free_payloads")


async def test_refresh_by_token_looks_at_what_expires(full_url: str) -> None:
    """The token rule has an index of its own, over groups that have tokens which age."""
    async with ReplayBuffer(full_url, item_type=dict) as buffer, spying(buffer) as statements:
        expired = await buffer.refresh_staleness(
            task_stale_thresholds={},
            task_token_stale_thresholds={"chat": 10},
            current_train_step=910,
        )
        assert expired == {"chat": 0}
    for statement in named(statements, "find_partial"):
        plan = await explain(full_url, statement)
        assert "ix_sqlreplay_groups_token_fresh" in plan.indexes, plan.text
        assert not {"sqlreplay_groups", "sqlreplay_payloads"} & plan.scanned, plan.text


async def test_size_reads_no_payload(full_url: str) -> None:
    """Where the run is the whole store, every narrow row counts and a database may as well scan them; leased groups
    still come from their own index, and bytes from nowhere."""
    async with ReplayBuffer(full_url, item_type=dict) as buffer, spying(buffer) as statements:
        assert await buffer.size() > ROWS * 0.9
    (statement,) = named(statements, "size")
    plan = await explain(full_url, statement)
    assert "ix_sqlreplay_groups_leased" in plan.indexes, plan.text
    assert "sqlreplay_payloads" not in plan.tables, plan.text
    assert plan.sorts == 0, plan.text


async def test_find_by_task_and_status_walks_along_uid(full_url: str) -> None:
    """A page goes by uid along the primary key, so nothing is sorted and the first page ends after so many matches.

    There is no index by task over waiting and leased groups together: a query that matches little reads every narrow
    row, and still no payload."""
    async with ReplayBuffer(full_url, item_type=dict) as buffer, spying(buffer) as statements:
        found = await buffer.find({"task_name": "math", "status": "completed"}, limit=10)
        assert len(found) == 10
        more = await buffer.find({"task_name": "math", "status": "completed"}, limit=10, after=found[-1].uid)
        assert more[0].uid > found[-1].uid
    for statement in named(statements, "page"):
        plan = await explain(full_url, statement)
        assert "sqlreplay_payloads" not in plan.tables, plan.text
        assert plan.sorts == 0, plan.text
        if full_url.startswith("postgresql"):
            assert "sqlreplay_groups" not in plan.scanned, plan.text
