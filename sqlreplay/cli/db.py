"""`sqlreplay db`: create the tables, bring them up to date, and see whether they are."""

import asyncio
from enum import Enum
from typing import Annotated, Any

import typer

from sqlreplay.cli.options import DEFAULT_URL, Json, PostgresSchema, Url, config_of
from sqlreplay.cli.output import print_json
from sqlreplay.config import StoreConfig, parse_url

__all__ = ["db"]

db = typer.Typer(no_args_is_help=True, help="Create, upgrade and check the tables.")


class DialectName(str, Enum):
    sqlite = "sqlite"
    postgresql = "postgresql"


@db.command()
def create(url: Url = DEFAULT_URL, postgres_schema: PostgresSchema = None, as_json: Json = False) -> None:
    """Create the tables. Where they are already, nothing happens."""
    from sqlreplay.store.inspection import inspect, migrate

    config = config_of(url, postgres_schema)
    found = asyncio.run(inspect(config))
    if found.revision is not None:
        if found.problem is not None:
            raise found.problem
        report(config, found.revision, f"{config} is there already, at revision {found.revision}.", as_json)
        return
    _, after = asyncio.run(migrate(config))
    report(config, after, f"{config} was created, at revision {after}.", as_json, created=True)


@db.command()
def upgrade(url: Url = DEFAULT_URL, postgres_schema: PostgresSchema = None, as_json: Json = False) -> None:
    """Bring the tables to this library's revision, in one transaction; creates them where there are none."""
    from sqlreplay.store.inspection import migrate

    config = config_of(url, postgres_schema)
    before, after = asyncio.run(migrate(config))
    line = f"{config}: revision {before or 'none'} -> {after}"
    if before == after:
        line = f"{config} is up to date, at revision {after}."
    report(config, after, line, as_json, before=before)


@db.command()
def check(url: Url = DEFAULT_URL, postgres_schema: PostgresSchema = None, as_json: Json = False) -> None:
    """Exit with 0 if the tables fit this library, else with 4 and the command to type."""
    from sqlreplay.store.inspection import inspect

    config = config_of(url, postgres_schema)
    found = asyncio.run(inspect(config))
    if found.problem is None or as_json:
        line = f"{config} fits this library, at revision {found.revision}."
        report(config, found.revision, line, as_json, ok=found.problem is None)
    if found.problem is not None:
        raise found.problem


@db.command()
def version(url: Url = DEFAULT_URL, postgres_schema: PostgresSchema = None, as_json: Json = False) -> None:
    """Print the database's revision and the one that this library needs."""
    from sqlreplay.store.inspection import inspect
    from sqlreplay.store.schema import head_revision

    config = config_of(url, postgres_schema)
    found = asyncio.run(inspect(config))
    lines = f"database {found.revision or 'none'}\nlibrary  {head_revision()}"
    report(config, found.revision, lines, as_json)
    if found.problem is not None and found.revision is None:
        raise found.problem


@db.command()
def sql(
    url: Url = DEFAULT_URL,
    postgres_schema: PostgresSchema = None,
    dialect: Annotated[
        DialectName | None, typer.Option(help="The database to write for; that of the URL if left out.")
    ] = None,
) -> None:
    """Print the statements that create the tables, without connecting to anything."""
    from sqlreplay.store.schema import render_sql

    parsed = parse_url(f"{dialect.value}://" if dialect else url)
    config = StoreConfig(parsed, postgres_schema=postgres_schema)
    if postgres_schema is not None:
        from sqlreplay.store.postgres import quoted

        name = quoted(postgres_schema)
        typer.echo(f"CREATE SCHEMA IF NOT EXISTS {name};\n\nSET search_path TO {name};\n")
    typer.echo(render_sql(config.url.get_backend_name()).rstrip())


def report(config: StoreConfig, revision: str | None, lines: str, as_json: bool, **more: Any) -> None:
    """Print what was found or done, for a person or for a machine."""
    if not as_json:
        typer.echo(lines)
        return
    from sqlreplay.store.schema import head_revision

    print_json({"url": str(config), "revision": revision, "head": head_revision(), **more})
