"""Where the store is and how it is opened."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from sqlreplay.errors import BadArgument, BadUrl

__all__ = ["DEFAULT_URL", "SchemaMode", "StoreConfig", "default_url", "parse_url"]

SchemaMode = Literal["upgrade", "check"]
DEFAULT_URL = "sqlite:///replay.db"
FILE_SUFFIXES = {".db", ".sqlite", ".sqlite3"}
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}


def default_url() -> str:
    """Return the URL from `SQLREPLAY_URL`, else a file `replay.db` in the working directory."""
    return os.environ.get("SQLREPLAY_URL") or DEFAULT_URL


def parse_url(text: str | Path) -> URL:
    """Turn what users type into a full URL with our driver: a URL, or the path of a SQLite file.

    >>> parse_url("postgres://replay@db.example/rl").drivername
    'postgresql+asyncpg'
    """
    text = str(text)
    if "://" not in text:
        if Path(text).suffix not in FILE_SUFFIXES:
            raise BadUrl(
                f"{text!r} is neither a URL nor the path of a SQLite file (one that ends in "
                f"{', '.join(sorted(FILE_SUFFIXES))}). Type sqlite:///replay.db or postgresql://user@host/database."
            )
        text = f"sqlite:///{text}"
    try:
        url = make_url(text)
        driver = DRIVERS[url.get_backend_name()]
    except (ArgumentError, KeyError, ValueError) as error:
        scheme = text.partition("://")[0]
        raise BadUrl(
            f"{scheme!r} is not a database that sqlreplay can open. "
            "Type sqlite:///replay.db for one node or postgresql://user@host/database for a cluster."
        ) from error
    url = url.set(drivername=driver)
    return sqlite_url(url) if driver.startswith("sqlite") else postgres_url(url)


def sqlite_url(url: URL) -> URL:
    """Make the path absolute, so that a change of directory or another process means the same file."""
    if url.host:
        raise BadUrl(
            f"{url.render_as_string()} has a host, {url.host!r}, where a path is expected. "
            f"Type three slashes: sqlite:///{url.host}/{url.database or 'replay.db'}."
        )
    if url.database in (None, "", ":memory:"):
        return url.set(database=":memory:")
    return url.set(database=str(Path(str(url.database)).expanduser().absolute()))


def postgres_url(url: URL) -> URL:
    """Spell libpq's `sslmode` the way asyncpg takes it."""
    if "sslmode" in url.query:
        url = url.update_query_pairs([("ssl", str(url.query["sslmode"]))]).difference_update_query(["sslmode"])
    return url


@dataclass(frozen=True)
class StoreConfig:
    """One database as one process opens it. Handles with equal configurations share a thread and its connections."""

    url: URL
    schema: SchemaMode = "upgrade"
    postgres_schema: str | None = None
    synchronous: Literal["normal", "full"] = "normal"
    busy_timeout_s: float = 60.0
    pool_size: int = 5

    def __post_init__(self) -> None:
        if self.schema not in ("upgrade", "check"):
            raise BadArgument(f"schema={self.schema!r} is unknown. Type schema='upgrade' or schema='check'.")
        if self.synchronous not in ("normal", "full"):
            raise BadArgument(f"synchronous={self.synchronous!r} is unknown. Type 'normal' or 'full'.")
        if self.busy_timeout_s <= 0 or self.pool_size < 1:
            raise BadArgument(
                f"busy_timeout_s={self.busy_timeout_s} and pool_size={self.pool_size} must both be positive."
            )
        if self.postgres_schema is not None and self.is_sqlite:
            raise BadArgument(
                f"postgres_schema={self.postgres_schema!r} means nothing to SQLite. Leave it out, or use another file."
            )

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def is_memory(self) -> bool:
        return self.is_sqlite and self.url.database == ":memory:"

    def __str__(self) -> str:
        """Name the database as users type it, without the password."""
        return self.url.set(drivername=self.url.get_backend_name()).render_as_string(hide_password=True)
