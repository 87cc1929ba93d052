"""Creating, upgrading and checking the tables, through alembic's revisions and nothing else.

The revisions live in `migrations/` beside the package in a checkout and inside it in a wheel. Their file names start
with the revision, so that opening a store that is up to date does not import alembic.
"""

import io
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

from sqlreplay.config import StoreConfig
from sqlreplay.errors import SchemaError, SchemaMissing, SchemaOutdated, SchemaTooNew
from sqlreplay.store.backend import Backend

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["check", "head_revision", "migrations_folder", "read_revision", "render_sql", "require", "upgrade"]

VERSION_TABLE = "sqlreplay_schema"


def migrations_folder() -> Path:
    """Return where the revisions are: inside an installed package, or at the top of a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "migrations"
    return inside if inside.is_dir() else package.parent / "migrations"


def known_revisions() -> list[str]:
    return sorted(path.name.partition("_")[0] for path in (migrations_folder() / "versions").glob("[0-9]*_*.py"))


def head_revision() -> str:
    """Return the revision that this library works with."""
    return known_revisions()[-1]


async def read_revision(backend: Backend, connection: AsyncConnection) -> str | None:
    """Return the revision of the database, or None where there are no tables yet."""
    if not await backend.has_table(connection, VERSION_TABLE):
        return None
    found: str | None = (await connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}"))).scalar()  # noqa: S608 - a constant
    return found


def check(found: str | None, config: StoreConfig) -> SchemaError | None:
    """Return what is wrong with a database at this revision, with the command that mends it."""
    head = head_revision()
    where, command = str(config), f"sqlreplay db upgrade --url {shlex.quote(str(config))}"
    if config.postgres_schema is not None:
        where += f" (schema {config.postgres_schema})"
        command += f" --postgres-schema {shlex.quote(config.postgres_schema)}"
    if found == head:
        return None
    if found is None:
        return SchemaMissing(f"{where} has no sqlreplay tables; this library needs revision {head}. Type: {command}")
    if found in known_revisions():
        return SchemaOutdated(f"{where} is at revision {found}, this library needs {head}. Type: {command}")
    return SchemaTooNew(
        f"{where} is at revision {found}, which is newer than this library knows ({head}). "
        "Type: pip install --upgrade sqlreplay"
    )


def require(found: str | None, config: StoreConfig) -> None:
    problem = check(found, config)
    if problem is not None:
        raise problem


async def upgrade(backend: Backend, connection: AsyncConnection, revision: str = "head") -> None:
    """Bring the tables to a revision inside the caller's transaction: killed half way, nothing has happened.

    Processes that open a fresh database together wait here for the first, and then find nothing left to do.
    """
    await backend.lock_schema(connection)
    found = await read_revision(backend, connection)
    if found == head_revision() and revision == "head":
        return
    problem = check(found, backend.config)
    if isinstance(problem, SchemaTooNew):
        raise problem
    await connection.run_sync(run_alembic, "upgrade", revision)


async def downgrade(connection: AsyncConnection, revision: str) -> None:
    """Take the tables back to a revision inside the caller's transaction."""
    await connection.run_sync(run_alembic, "downgrade", revision)


def run_alembic(connection: Connection, direction: str, revision: str) -> None:
    from alembic import command

    config = alembic_config(connection=connection)
    getattr(command, direction)(config, revision)


def render_sql(dialect: str, revision: str = "head") -> str:
    """Return the statements that create the tables, without connecting to anything."""
    from alembic import command

    output = io.StringIO()
    config = alembic_config(dialect=dialect)
    config.output_buffer = output
    command.upgrade(config, revision, sql=True)
    return output.getvalue()


def alembic_config(**attributes: Any) -> "Config":
    from alembic.config import Config

    config = Config(stdout=io.StringIO())
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes.update(attributes)
    return config
