"""What only Postgres has: schemas inside a database, and roles that may do no more than they must."""

import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest
from catalog import opened, table_names
from sqlalchemy.engine import make_url

from sqlreplay import ReplayBuffer
from sqlreplay.errors import SchemaMissing, StoreError


async def test_schemas_are_stores_of_their_own(empty_postgres_url: str) -> None:
    """Two schemas of one database know nothing of each other, and `public` stays empty."""
    names = ["replay one", 'we"ird']
    for number, name in enumerate(names):
        async with ReplayBuffer(empty_postgres_url, item_type=dict, postgres_schema=name) as buffer:
            for copy in range(number + 1):
                assert await buffer.put([{"store": name, "copy": copy}], "math", meta={"name": name}) == copy + 1
    async with opened(empty_postgres_url) as database, database.session(write=False) as connection:
        assert await table_names(connection) == set()
    for number, name in enumerate(names):
        async with (
            opened(empty_postgres_url, postgres_schema=name) as database,
            database.session(write=False) as connection,
        ):
            assert "sqlreplay_groups" in await table_names(connection)
        async with ReplayBuffer(empty_postgres_url, item_type=dict, postgres_schema=name, schema="check") as buffer:
            assert await buffer.size() == number + 1
            taken = await buffer.get(9, "math", "completed")
            assert taken == [[{"store": name, "copy": copy}] for copy in range(number + 1)]


async def test_schema_of_a_name_that_is_not_there(empty_postgres_url: str) -> None:
    """With `check` neither the tables nor the schema are made."""
    buffer = ReplayBuffer(empty_postgres_url, item_type=dict, postgres_schema="nowhere", schema="check")
    with pytest.raises(SchemaMissing):
        await buffer.size()
    await buffer.close()
    connection = await asyncpg.connect(empty_postgres_url)
    assert await connection.fetchval("SELECT to_regnamespace('nowhere')") is None
    await connection.close()


@pytest.fixture
async def runtime_url(postgres_url: str) -> AsyncIterator[str]:
    """The same database for a role that may read and write rows, and nothing else."""
    role = f"sqlreplay_runtime_{uuid.uuid4().hex[:8]}"
    owner = await asyncpg.connect(postgres_url)
    await owner.execute(
        f"""
        REVOKE CREATE ON SCHEMA public FROM PUBLIC;
        CREATE ROLE {role} LOGIN PASSWORD 'runtime';
        GRANT USAGE ON SCHEMA public TO {role};
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role};
        REVOKE INSERT, UPDATE, DELETE ON sqlreplay_schema FROM {role};
        GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role};
        """
    )
    url = make_url(postgres_url).set(username=role, password="runtime")
    yield url.render_as_string(hide_password=False)
    await owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    await owner.close()


async def test_runtime_role_needs_no_right_to_create(runtime_url: str) -> None:
    """Every verb works with rights on rows alone, so that a trainer cannot harm the tables."""
    connection = await asyncpg.connect(runtime_url)
    for statement in ("CREATE TABLE mine (id integer)", "DROP TABLE sqlreplay_groups"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)
    await connection.close()

    async with ReplayBuffer(runtime_url, item_type=dict, schema="check", run="new") as buffer:
        items = [{"number": 1, "response_ids": [1], "response_model_steps": [0], "status": "completed"}]
        first = await buffer.put(items, "math", current_train_step=1, meta={"source": "web"})
        second = await buffer.put([{"number": 2}], "math")
        assert await buffer.size() == 2
        assert await buffer.is_ready({"math": 2})
        (found,) = await buffer.find({"meta.source": "web"})
        assert found.uid == first
        found.item[0]["number"] = 11
        assert await buffer.update([found]) == 1
        expired = await buffer.refresh_staleness(task_stale_thresholds={"math": 2}, current_train_step=9)
        assert expired == {"math": 1}
        assert (await buffer.get(1, "math", "expired"))[0][0]["number"] == 11
        batches, counts = await buffer.take_batch({"math": 1}, max_tokens=100, train_step=10)
        assert (batches["math"], counts) == ([[{"number": 2}]], {"math": 1})
        third = await buffer.put([{"number": 3}], "code")
        assert await buffer.delete([third, second]) == 1
        assert (await buffer.stats()).scalars("replay/")
        assert await buffer.size() == 0


async def test_runtime_role_cannot_upgrade(runtime_url: str, postgres_url: str) -> None:
    """Where tables are missing and the role may not make them, the error says what was refused."""
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("DROP TABLE sqlreplay_schema")
    await connection.close()
    buffer = ReplayBuffer(runtime_url, item_type=dict)
    with pytest.raises(StoreError, match="permission denied"):
        await buffer.size()
    await buffer.close()
