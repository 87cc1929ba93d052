"""The options that commands share, under the same names as in Python."""

from typing import Annotated

import typer

from sqlreplay.config import DEFAULT_URL, StoreConfig, parse_url
from sqlreplay.errors import BadArgument

__all__ = ["DEFAULT_URL", "Json", "PostgresSchema", "Url", "config_of"]

Url = Annotated[
    str, typer.Option("--url", envvar="SQLREPLAY_URL", help="The database: a URL, or the path of a SQLite file.")
]
PostgresSchema = Annotated[
    str | None,
    typer.Option("--postgres-schema", metavar="NAME", help="The Postgres schema that the tables are in."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, with a version field, for machines.")]


def config_of(url: str, postgres_schema: str | None) -> StoreConfig:
    """Name the database of a command, opened without changing its tables."""
    config = StoreConfig(parse_url(url), schema="check", postgres_schema=postgres_schema)
    if config.is_memory:
        raise BadArgument(
            f"{url} is a database in memory, which ends with this command. Type a file: --url sqlite:///replay.db"
        )
    return config
