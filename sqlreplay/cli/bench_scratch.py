"""Where a benchmark works: databases of its own in a temporary folder or in schemas, gone when it ends."""

import asyncio
import json
import shutil
import sqlite3
import sys
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg

from sqlreplay import ReplayBuffer, RolloutState
from sqlreplay.cli import bench_fill
from sqlreplay.cli.bench_bare import Bare, BarePostgres, BareSqlite
from sqlreplay.config import StoreConfig, parse_url
from sqlreplay.errors import BadArgument, StoreUnavailable

__all__ = ["Scratch", "open_scratch"]

TABLES = ("runs", "tasks", "refreshes", "groups", "payloads")


class Scratch(ABC):
    """Databases by name. Each can be filled through the library, copied, and opened from either side."""

    is_sqlite = False

    @abstractmethod
    def place(self, name: str) -> dict[str, Any]:
        """Return the arguments with which a buffer opens a database."""

    @abstractmethod
    async def copy(self, name: str, other: str) -> None:
        """Make another database with the same rows and bytes."""

    @abstractmethod
    async def open_bare(self, name: str) -> Bare: ...

    @abstractmethod
    async def facts(self, name: str) -> dict[str, Any]:
        """Return the database's version and how durable a commit is."""

    @abstractmethod
    async def drop(self, *names: str) -> None: ...

    @abstractmethod
    async def remove(self) -> None:
        """Leave nothing behind."""

    def open_buffer(self, name: str) -> ReplayBuffer[RolloutState]:
        return ReplayBuffer(**self.place(name))

    async def fill(self, name: str, report: Callable[[int], None], **what: int) -> int:
        """Store groups from a process of its own, and return the most memory that it held."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            bench_fill.__file__,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        request = {"postgres_schema": None, **self.place(name), **what}
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
        peak = 0
        async for line in process.stdout:
            said = json.loads(line)
            if isinstance(said, int):
                report(said)
            else:
                peak = said["peak_bytes"]
        if await process.wait() != 0:
            raise StoreUnavailable("The process that fills the database failed; its error is above.")
        return peak


class SqliteScratch(Scratch):
    """A folder beside the file that the URL names, or in the system's own place for such."""

    is_sqlite = True

    def __init__(self, beside: Path | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sqlreplay-bench-", dir=beside))

    def path(self, name: str) -> str:
        return str(self.folder / f"{name}.db")

    def place(self, name: str) -> dict[str, Any]:
        return {"url": f"sqlite:///{self.path(name)}"}

    async def copy(self, name: str, other: str) -> None:
        source, target = sqlite3.connect(self.path(name)), sqlite3.connect(self.path(other))
        target.execute("PRAGMA synchronous = off")
        source.backup(target)
        source.close()
        target.close()

    async def open_bare(self, name: str) -> Bare:
        return BareSqlite(self.path(name))

    async def facts(self, name: str) -> dict[str, Any]:
        return {"database": f"SQLite {sqlite3.sqlite_version}", "synchronous": "normal, WAL"}

    async def drop(self, *names: str) -> None:
        for name in names:
            for path in self.folder.glob(f"{name}.db*"):
                path.unlink()

    async def remove(self) -> None:
        shutil.rmtree(self.folder)


class PostgresScratch(Scratch):
    """Schemas of its own in the database that the URL names."""

    def __init__(self, config: StoreConfig) -> None:
        url = config.url.set(drivername="postgresql")
        self.url = url.render_as_string(hide_password=False)
        if "ssl" in url.query:
            url = url.update_query_dict({"sslmode": str(url.query["ssl"])}).difference_update_query(["ssl"])
        self.dsn = url.render_as_string(hide_password=False)
        self.prefix = f"sqlreplay_bench_{uuid.uuid4().hex[:8]}"
        self.names: set[str] = set()

    def schema(self, name: str) -> str:
        return f"{self.prefix}_{name}"

    def place(self, name: str) -> dict[str, Any]:
        self.names.add(name)
        return {"url": self.url, "postgres_schema": self.schema(name)}

    async def execute(self, *statements: str) -> None:
        connection = await asyncpg.connect(self.dsn)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def copy(self, name: str, other: str) -> None:
        async with self.open_buffer(other):
            pass  # creates the tables
        source, target = self.schema(name), self.schema(other)
        await self.execute(
            f"DELETE FROM {target}.sqlreplay_runs",  # noqa: S608 - names of our own, here and below
            *(
                f"INSERT INTO {target}.sqlreplay_{table} SELECT * FROM {source}.sqlreplay_{table}"  # noqa: S608
                for table in TABLES
            ),
            *(f"VACUUM ANALYZE {schema}.sqlreplay_{table}" for schema in (source, target) for table in TABLES),
        )

    async def open_bare(self, name: str) -> Bare:
        return await BarePostgres.open(self.dsn, self.schema(name))

    async def facts(self, name: str) -> dict[str, Any]:
        bare = await BarePostgres.open(self.dsn, self.schema(name))
        try:
            found = [
                (await bare.fetch(f"SHOW {setting}"))[0][0]
                for setting in ("server_version", "synchronous_commit", "fsync")
            ]
        finally:
            await bare.close()
        return {"database": f"PostgreSQL {found[0]}", "synchronous": f"{found[1]}, fsync {found[2]}"}

    async def drop(self, *names: str) -> None:
        await self.execute(*(f"DROP SCHEMA IF EXISTS {self.schema(name)} CASCADE" for name in names))
        self.names.difference_update(names)

    async def remove(self) -> None:
        await self.drop(*self.names)


def open_scratch(url: str | None) -> Scratch:
    """Choose where to work. What the URL names is itself never touched."""
    if url is None:
        return SqliteScratch(None)
    config = StoreConfig(parse_url(url))
    if config.is_memory:
        raise BadArgument("A database in memory has no file to measure. Type --url sqlite:///replay.db.")
    if not config.is_sqlite:
        return PostgresScratch(config)
    folder = Path(str(config.url.database)).parent
    if not folder.is_dir():
        raise BadArgument(f"The folder {folder} does not exist. Create it, or name a file in one that does.")
    return SqliteScratch(folder)
