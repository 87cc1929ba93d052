"""The command line as a shell sees it: real processes, their two streams and their exit codes."""

import asyncio
import json
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from sqlreplay import ReplayBuffer, RolloutState, Status, TableConfig
from sqlreplay.store.schema import head_revision

UNREACHABLE = "postgresql://nobody@127.0.0.1:1/none"


def sqlreplay(*arguments: str, url: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("SQLREPLAY_URL", "NO_COLOR")}
    given = {**environment} if url is None else {**environment, "SQLREPLAY_URL": url}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "sqlreplay", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**kept, **given},
        check=False,
    )


def fine(*arguments: str, url: str | None = None) -> str:
    done = sqlreplay(*arguments, url=url)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def fine_json(*arguments: str, url: str | None = None) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(fine(*arguments, "--json", url=url))
    assert data["version"] == 1
    return data


def refused(code: int, *arguments: str, url: str | None = None) -> str:
    """The command says no: one line on stderr, no traceback, nothing on stdout."""
    done = sqlreplay(*arguments, url=url)
    assert done.returncode == code, done
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest) -> str:
    name = {"sqlite": "sqlite_url", "postgres": "empty_postgres_url"}[request.param]
    found: str = request.getfixturevalue(name)
    return found


def execute(url: str, script: str) -> None:
    """Run statements without the library."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.executescript(script)
        connection.close()
        return

    async def run() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(script)
        await connection.close()

    asyncio.run(run())


def state(number: int) -> RolloutState:
    return RolloutState(
        message=[{"role": "user", "content": "p"}],
        rollout_id=number,
        prompt_ids=[1, 2],
        response="r",
        response_ids=[5, 6],
        response_mask=[1, 1],
        status=Status.COMPLETED,
    )


def test_version_and_help() -> None:
    from sqlreplay import __version__

    assert fine("--version") == f"sqlreplay {__version__}\n"
    listed = fine("--help")
    assert all(name in listed for name in ("db", "stats", "demo"))


def test_console_script_is_the_same_program() -> None:
    script = Path(sys.executable).with_name("sqlreplay")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == fine("--version")


def test_create_upgrade_check_and_version(empty_url: str) -> None:
    assert "sqlreplay db" in refused(4, "db", "check", url=empty_url)
    nothing = sqlreplay("db", "version", "--json", url=empty_url)
    assert nothing.returncode == 4
    assert json.loads(nothing.stdout)["revision"] is None

    created = fine_json("db", "create", url=empty_url)
    assert created["created"] is True
    assert created["revision"] == created["head"]
    assert "already" in fine("db", "create", url=empty_url)
    assert "created" not in fine_json("db", "create", url=empty_url)
    assert fine_json("db", "check", url=empty_url)["ok"] is True
    assert fine("db", "version", url=empty_url) == f"database {created['head']}\nlibrary  {created['head']}\n"
    assert "up to date" in fine("db", "upgrade", url=empty_url)


def test_upgrade_tells_from_and_to(empty_url: str) -> None:
    assert f"revision none -> {head_revision()}" in fine("db", "upgrade", url=empty_url)
    assert fine_json("db", "upgrade", url=empty_url)["before"] == head_revision()


def test_a_newer_schema_is_left_alone(url: str) -> None:
    fine("db", "create", url=url)
    execute(url, "UPDATE sqlreplay_schema SET version_num = '9999'")
    for command in (["db", "check"], ["db", "create"], ["db", "upgrade"], ["stats"], ["demo"]):
        assert "9999" in refused(4, *command, url=url)
    assert fine_json("db", "version", url=url)["revision"] == "9999"
    told = sqlreplay("db", "check", "--json", url=url)
    assert told.returncode == 4
    assert json.loads(told.stdout)["ok"] is False


def test_url_option_beats_the_environment(tmp_path: Path) -> None:
    wanted, other = tmp_path / "wanted.db", tmp_path / "other.db"
    fine("db", "create", "--url", str(wanted), url=f"sqlite:///{other}")
    assert wanted.exists()
    assert not other.exists()


@pytest.mark.parametrize("command", [["db", "check"], ["db", "version"], ["stats"]])
def test_looking_creates_no_file(tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "folder" / "replay.db"
    done = sqlreplay(*command, "--url", str(path))
    assert done.returncode == 4
    assert "does not exist" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command", [["db", "create"], ["db", "upgrade"], ["db", "check"], ["db", "version"], ["stats"]]
)
def test_an_unreachable_server(command: list[str]) -> None:
    assert "cannot be reached" in refused(3, *command, url=UNREACHABLE)


def test_a_login_that_is_refused_shows_no_password(postgres_url: str) -> None:
    from sqlalchemy.engine import make_url

    url = make_url(postgres_url).set(database="no_such_database", password="hunter2")
    told = refused(3, "db", "check", url=url.render_as_string(hide_password=False))
    assert "no_such_database" in told
    assert "hunter2" not in told


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("not a database, but long enough to be looked at " * 100)
    before = path.read_bytes()
    for command in (["db", "check"], ["db", "create"], ["stats"]):
        assert "not a SQLite database" in refused(3, *command, "--url", str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("bad", ["mysql://user@host/name", "nonsense", "sqlite://host/replay.db", "sqlite://"])
def test_a_bad_url(bad: str) -> None:
    assert "Type" in refused(2, "db", "create", "--url", bad)


@pytest.mark.parametrize("command", [["db", "check"], ["stats"], ["demo"], ["db", "sql"]])
def test_a_bad_url_is_bad_everywhere(command: list[str]) -> None:
    assert "Type" in refused(2, *command, url="mysql://user@host/name")


def test_bad_usage() -> None:
    assert sqlreplay("db", "destroy").returncode == 2
    assert sqlreplay("demo", "--seconds", "soon").returncode == 2
    assert "means nothing to SQLite" in refused(2, "db", "check", "--url", "a.db", "--postgres-schema", "rl")


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_sql_of_a_dialect(dialect: str) -> None:
    text = fine("db", "sql", "--dialect", dialect, url=UNREACHABLE)
    assert "CREATE TABLE sqlreplay_groups" in text
    assert ("BIGSERIAL" in text) == (dialect == "postgresql")


def test_sql_makes_the_tables_that_check_wants(empty_url: str) -> None:
    execute(empty_url, fine("db", "sql", url=empty_url))
    assert fine_json("db", "check", url=empty_url)["ok"] is True
    asyncio.run(fill(empty_url))
    assert fine_json("stats", url=empty_url)["groups"] == 3


def test_a_postgres_schema_of_its_own(empty_postgres_url: str) -> None:
    schema = ("--postgres-schema", 'Odd "name"')
    fine("db", "create", *schema, url=empty_postgres_url)
    fine("db", "check", *schema, url=empty_postgres_url)
    assert "--postgres-schema other" in refused(4, "db", "check", "--postgres-schema", "other", url=empty_postgres_url)
    refused(4, "db", "check", url=empty_postgres_url)
    execute(empty_postgres_url, fine("db", "sql", "--postgres-schema", "other", url=empty_postgres_url))
    fine("db", "check", "--postgres-schema", "other", url=empty_postgres_url)


async def fill(url: str, run: str = "default") -> None:
    async with ReplayBuffer(url, run=run) as buffer:
        await buffer.put([state(1), state(2)], "math", model_step=1, current_train_step=2)
        await buffer.put([state(3)], "math", model_step=1, current_train_step=9, stale_threshold=3)
        await buffer.put([state(4)], "[red]code")


def test_stats_as_json_and_as_a_table(url: str) -> None:
    asyncio.run(fill(url, "first"))
    data = fine_json("stats", "--run", "first", url=url)
    assert data["groups"] == 3
    assert data["run"] == "first"
    assert data["tasks"]["math"]["waiting"] == {"completed": 1, "expired": 1}
    assert data["tasks"]["[red]code"]["samples"] == 1

    table = fine("stats", "--run", "first", url=url)
    rows = {row[0]: row[1:] for row in (line.replace("│", " ").split() for line in table.splitlines()) if row}
    assert rows["math"][:5] == ["9", "1", "1", "0", "2"]
    assert rows["[red]code"][:5] == ["-", "1", "0", "0", "1"]
    assert rows["total"][:4] == ["2", "1", "0", "3"]
    assert "\x1b" not in table


def test_stats_shows_tables_where_there_are_some(url: str) -> None:
    asyncio.run(fill(url))
    assert "evicted" not in fine("stats", url=url)

    async def sampled() -> None:
        async with ReplayBuffer(url, tables={"math": TableConfig(max_size=1)}) as buffer:
            await buffer.put([state(5)], "math")
            await buffer.sample(1, "math", timeout=10)

    asyncio.run(sampled())
    data = fine_json("stats", url=url)["tasks"]
    assert [data["math"][name] for name in ("size", "sampled", "max_size")] == [1, 1, 1]
    assert data["[red]code"]["sampled"] is None
    text = fine("stats", url=url)
    assert "evicted" in text
    assert "1 / 1 (100 %)" in text


def test_stats_of_an_unknown_run_creates_none(empty_url: str) -> None:
    asyncio.run(fill(empty_url, "first"))
    for _ in range(2):
        assert refused(1, "stats", "--run", "frist", url=empty_url).endswith(
            "has no run 'frist'. Choose one with --run. There are: first\n"
        )


def test_stats_of_a_database_that_holds_nothing(empty_url: str) -> None:
    fine("db", "create", url=empty_url)
    assert "Nothing was put there yet" in refused(1, "stats", url=empty_url)


def test_a_new_file_is_for_its_owner_alone(sqlite_url: str) -> None:
    fine("db", "create", url=sqlite_url)
    mode = Path(sqlite_url.removeprefix("sqlite:///")).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
