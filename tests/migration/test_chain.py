"""The revisions, run one after the other, make the tables of `sqlreplay/store/tables.py`, and can be taken back."""

import ast
import re
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from catalog import VERSION_TABLE, describe, index_statements, opened, table_names
from sqlalchemy import Connection, text

from sqlreplay import ReplayBuffer
from sqlreplay.store import schema
from sqlreplay.store.tables import groups, metadata


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """A database without tables, of each kind."""
    names = {"sqlite": "sqlite_url", "postgres": "empty_postgres_url"}
    found: str = request.getfixturevalue(names[request.param])
    return found


def test_files_are_numbered_and_say_one_idea() -> None:
    files = sorted((schema.migrations_folder() / "versions").glob("*.py"))
    assert files
    for number, path in enumerate(files, start=1):
        assert re.fullmatch(rf"{number:04d}_[a-z0-9]+(_[a-z0-9]+)*\.py", path.name), path.name
        values = {
            target.id: ast.literal_eval(node.value)
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name) and target.id in ("revision", "down_revision")
        }
        assert values == {
            "revision": f"{number:04d}",
            "down_revision": f"{number - 1:04d}" if number > 1 else None,
        }


def test_one_head_which_the_library_finds_without_alembic() -> None:
    script = ScriptDirectory.from_config(schema.alembic_config())
    assert script.get_heads() == [schema.head_revision()]
    assert script.get_bases() == ["0001"]


async def test_chain_equals_tables(empty_url: str) -> None:
    """The same catalog, whether the revisions made the tables or SQLAlchemy did."""
    async with opened(empty_url) as database, database.session(write=True) as connection:
        await schema.upgrade(database.backend, connection)
        by_revisions = await describe(connection)
        await schema.downgrade(connection, "base")
        await connection.run_sync(metadata.create_all)
        by_definition = await describe(connection)
    assert by_revisions == by_definition
    assert {f"index ix_sqlreplay_groups_{name}" for name in ("fifo", "staleness", "leased")} < set(by_revisions)


async def test_autogenerate_finds_nothing_to_do(empty_url: str) -> None:
    """Alembic's own comparison: what `alembic revision --autogenerate` would write is empty."""

    def differences(connection: Connection) -> list[Any]:
        options = {"compare_type": True, "compare_server_default": True, "version_table": VERSION_TABLE}
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)

    async with opened(empty_url) as database, database.session(write=True) as connection:
        await schema.upgrade(database.backend, connection)
        assert await connection.run_sync(differences) == []


async def test_partial_indexes_keep_their_condition(empty_url: str) -> None:
    """Autogenerate does not compare conditions, and an index without its own would still be used, only larger."""
    async with opened(empty_url) as database, database.session(write=True) as connection:
        await schema.upgrade(database.backend, connection)
        statements = await index_statements(connection)
    for index in groups.indexes:
        condition = index.dialect_options["sqlite"]["where"]
        assert str(index.dialect_options["postgresql"]["where"]) == str(condition)
        found = bare(statements[str(index.name)].partition(" WHERE ")[2])
        assert found == bare(str(condition)), index.name


def bare(condition: str) -> str:
    """Leave out what each database adds of its own: parentheses, quotes, casts and table names."""
    return re.sub(r"::bigint|sqlreplay_groups\.|[()'\" ]", "", condition).lower()


async def test_down_and_up_again(empty_url: str) -> None:
    """The last step goes down and up; from base nothing is left but alembic's own table; and the store still works."""
    async with opened(empty_url) as database:
        async with database.session(write=True) as connection:
            await schema.upgrade(database.backend, connection)
            before = await describe(connection)
        async with database.session(write=True) as connection:
            await schema.downgrade(connection, "-1")
            assert await schema.read_revision(database.backend, connection) != schema.head_revision()
            assert await describe(connection) != before
        async with database.session(write=True) as connection:
            await schema.upgrade(database.backend, connection)
            assert await describe(connection) == before
            assert await schema.read_revision(database.backend, connection) == schema.head_revision()
        async with database.session(write=True) as connection:
            await schema.downgrade(connection, "base")
            assert await table_names(connection) == {VERSION_TABLE}
            assert await describe(connection) == {}
            await schema.upgrade(database.backend, connection)
            assert await describe(connection) == before
    async with ReplayBuffer(empty_url, item_type=dict, schema="check") as buffer:
        assert await buffer.put([{"number": 1}], "math") == 1
        assert await buffer.get(1, "math", "completed") == [[{"number": 1}]]


async def test_upgrade_step_by_step_is_upgrade_at_once(empty_url: str) -> None:
    """A database that followed every release has the same tables as one made today."""
    async with opened(empty_url) as database, database.session(write=True) as connection:
        for revision in schema.known_revisions():
            await schema.upgrade(database.backend, connection, revision)
            assert await schema.read_revision(database.backend, connection) == revision
        by_steps = await describe(connection)
        await schema.downgrade(connection, "base")
        await schema.upgrade(database.backend, connection)
        assert await describe(connection) == by_steps


async def test_postgres_tables_are_set_up_as_a_queue(empty_postgres_url: str) -> None:
    """Bodies arrive compressed, and rows come and go: neither setting has a place in SQLAlchemy's definitions."""
    async with opened(empty_postgres_url) as database, database.session(write=True) as connection:
        await schema.upgrade(database.backend, connection)
        storage = (
            "SELECT attstorage::text FROM pg_attribute "
            "WHERE attrelid = 'sqlreplay_payloads'::regclass AND attname = 'body'"
        )
        assert (await connection.execute(text(storage))).scalar() == "e"
        options = "SELECT relname, reloptions FROM pg_class WHERE relname IN ('sqlreplay_groups', 'sqlreplay_payloads')"
        found = dict((await connection.execute(text(options))).all())
        assert "fillfactor=70" in found["sqlreplay_groups"]
        assert all("autovacuum_vacuum_scale_factor=0.01" in settings for settings in found.values())


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_sql_without_a_connection(dialect: str) -> None:
    """Where a database administrator runs the statements, they are all there, with the revision at the end."""
    sql = schema.render_sql(dialect)
    for table in metadata.tables.values():
        assert f"CREATE TABLE {table.name} " in sql
        for index in table.indexes:
            assert f"INDEX {index.name} " in sql
    assert f"VALUES ('{schema.head_revision()}')" in sql or f"version_num='{schema.head_revision()}'" in sql
