"""Opening a store creates its tables once, whole, and never touches tables it does not know."""

import asyncio
import signal
import subprocess
import sys

import pytest
from catalog import describe, opened, table_names
from sqlalchemy import text

from sqlreplay import ReplayBuffer
from sqlreplay.errors import SchemaMissing, SchemaTooNew
from sqlreplay.store import schema

OPENERS = 16
OPEN_TOGETHER = """
import asyncio, multiprocessing, sys
from sqlreplay import ReplayBuffer
import alembic.command  # so that no process is late

async def use(number):
    async with ReplayBuffer(sys.argv[1], item_type=dict, pool_size=1) as buffer:
        return await buffer.put([{"number": number}], "math")

def opener(number, barrier, answers):
    barrier.wait()
    try:
        answers.put(asyncio.run(use(number)))
    except BaseException as error:
        answers.put(repr(error))

if __name__ == "__main__":
    forking = multiprocessing.get_context("fork")
    count = int(sys.argv[2])
    barrier, answers = forking.Barrier(count), forking.Queue()
    processes = [forking.Process(target=opener, args=(n, barrier, answers)) for n in range(count)]
    for process in processes:
        process.start()
    for _ in range(count):
        print(answers.get(timeout=60))
    for process in processes:
        process.join()
"""
MIGRATE_AND_DIE = """
import asyncio, os, signal, sys
from sqlalchemy import event
from sqlreplay.config import StoreConfig, parse_url
from sqlreplay.store import schema
from sqlreplay.store.database import Database

changes = int(sys.argv[2])

def count(connection, cursor, statement, parameters, context, executemany):
    global changes
    if statement.lstrip().split()[0] in ("CREATE", "INSERT", "ALTER"):
        changes -= 1
        if changes == 0:
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    database = Database(StoreConfig(parse_url(sys.argv[1])))
    async with database.session(write=True) as connection:
        event.listen(connection.sync_connection, "after_cursor_execute", count)
        await schema.upgrade(database.backend, connection)
        print("all but the commit", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """A database without tables, of each kind."""
    names = {"sqlite": "sqlite_url", "postgres": "empty_postgres_url"}
    found: str = request.getfixturevalue(names[request.param])
    return found


async def run_script(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", script, *arguments]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=100)


async def test_many_processes_open_a_fresh_database_together(empty_url: str) -> None:
    """T16: all succeed, one schema, and every put of every process is there."""
    done = await run_script(OPEN_TOGETHER, empty_url, str(OPENERS))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split(), key=int) == [str(uid) for uid in range(1, OPENERS + 1)], done.stdout
    async with opened(empty_url) as database, database.session(write=False) as connection:
        versions = (await connection.execute(text("SELECT version_num FROM sqlreplay_schema"))).scalars().all()
        assert versions == [schema.head_revision()]
    async with ReplayBuffer(empty_url, item_type=dict, schema="check") as buffer:
        numbers = [group[0]["number"] for group in await buffer.get(99, "math", "completed")]
        assert sorted(numbers) == list(range(OPENERS))


@pytest.mark.parametrize("changes", [1, 4, 9, 99])
async def test_killed_half_way_leaves_nothing(empty_url: str, changes: int) -> None:
    """Killed after so many statements, the last time with all done but the commit: no table is there, and a normal
    open makes them all. Both databases change tables inside a transaction."""
    done = await run_script(MIGRATE_AND_DIE, empty_url, str(changes))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (done.stdout == "all but the commit\n") == (changes == 99)
    async with opened(empty_url) as database, database.session(write=False) as connection:
        assert await table_names(connection) == set()
    async with ReplayBuffer(empty_url, item_type=dict) as buffer:
        await buffer.put([{"number": 1}], "math")
        assert await buffer.get(1, "math", "completed") == [[{"number": 1}]]


async def test_failed_half_way_leaves_nothing(empty_url: str) -> None:
    """The same without a kill: an error before the commit takes the tables back, the version table too."""
    async with opened(empty_url) as database:
        with pytest.raises(ZeroDivisionError):
            async with database.session(write=True) as connection:
                await schema.upgrade(database.backend, connection)
                assert await describe(connection)
                raise ZeroDivisionError
        async with database.session(write=False) as connection:
            assert await table_names(connection) == set()


@pytest.mark.parametrize("mode", ["upgrade", "check"])
async def test_newer_tables_are_refused(url: str, mode: str) -> None:
    """An old library must not write into tables whose meaning it does not know, nor "upgrade" them."""
    async with ReplayBuffer(url, item_type=dict) as buffer:
        await buffer.put([{"number": 1}], "math")
    async with opened(url) as database, database.session(write=True) as connection:
        await connection.execute(text("UPDATE sqlreplay_schema SET version_num = '9999'"))
        before = await describe(connection)
    with pytest.raises(SchemaTooNew, match=r"9999.*pip install --upgrade sqlreplay"):
        async with ReplayBuffer(url, item_type=dict, schema=mode):
            pass
    async with opened(url) as database:
        async with database.session(write=True) as connection:
            with pytest.raises(SchemaTooNew):
                await schema.upgrade(database.backend, connection)
        async with database.session(write=False) as connection:
            assert await describe(connection) == before
            assert await schema.read_revision(database.backend, connection) == "9999"


async def test_check_asks_for_the_command(empty_url: str) -> None:
    """`schema="check"` creates nothing and says what to type."""
    buffer = ReplayBuffer(empty_url, item_type=dict, schema="check")
    with pytest.raises(SchemaMissing, match=r"sqlreplay db upgrade --url '?(sqlite|postgresql):"):
        await buffer.size()
    await buffer.close()
    async with opened(empty_url) as database, database.session(write=False) as connection:
        assert await table_names(connection) == set()


async def test_check_accepts_tables_that_fit(url: str) -> None:
    async with ReplayBuffer(url, item_type=dict):
        pass
    async with ReplayBuffer(url, item_type=dict, schema="check") as buffer:
        assert await buffer.size() == 0
