"""Looking at a database and bringing its tables up to date, without opening a run: for the command line."""

import os
import shlex
from dataclasses import dataclass

from sqlalchemy import select

from sqlreplay.config import StoreConfig
from sqlreplay.errors import SchemaError, SchemaMissing
from sqlreplay.store import schema
from sqlreplay.store.database import Database
from sqlreplay.store.tables import runs

__all__ = ["Inspection", "inspect", "migrate"]


@dataclass(frozen=True)
class Inspection:
    """What a database holds: its revision, what is wrong with that, and the runs where nothing is."""

    revision: str | None
    problem: SchemaError | None
    runs: tuple[str, ...] = ()


async def inspect(config: StoreConfig) -> Inspection:
    """Read a database's revision and the names of its runs. A SQLite file that is missing stays missing."""
    if is_missing_file(config):
        command = f"sqlreplay db create --url {shlex.quote(str(config))}"
        return Inspection(None, SchemaMissing(f"{config} does not exist yet. Type: {command}"))
    database = Database(config)
    try:
        async with database.session(write=False) as connection:
            revision = await schema.read_revision(database.backend, connection)
            problem = schema.check(revision, config)
            if problem is not None:
                return Inspection(revision, problem)
            names = await connection.execute(select(runs.c.name).order_by(runs.c.name))
            return Inspection(revision, None, tuple(names.scalars()))
    finally:
        await database.close()


def is_missing_file(config: StoreConfig) -> bool:
    return config.is_sqlite and not os.path.exists(str(config.url.database))


async def migrate(config: StoreConfig) -> tuple[str | None, str | None]:
    """Create or upgrade the tables in one transaction, and return the revision before and after."""
    database = Database(config)
    try:
        async with database.session(write=True) as connection:
            await database.backend.lock_schema(connection)
            before = await schema.read_revision(database.backend, connection)
            await schema.upgrade(database.backend, connection)
            return before, await schema.read_revision(database.backend, connection)
    finally:
        await database.close()
