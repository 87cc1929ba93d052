"""The benchmark runs, measures what it says, and leaves nothing behind. How fast anything is, is not asserted."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from sqlreplay.cli.bench_report import Measure, Row

pytestmark = pytest.mark.timeout(300)  # some ten seconds of work each, on machines that are often busy
SMALL_RUN = ("--quick", "--stored", "300")
MEASURED_BY_SIZE = (
    "take_batch of 128",
    "take_batch of 128, 300 stored",
    "put, 128 at once",
    "count",
    "is_ready",
    "refresh_staleness, none expire",
    "refresh_staleness, none expire, 300 stored",
    "refresh_staleness, 30 expire",
    "encode and decode a group",
)


def run_bench(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, with its temporary files in `folder`."""
    code = "import typer; from sqlreplay.cli.bench import bench; typer.run(bench)"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done


def schemas_of(url: str) -> set[str]:
    async def ask() -> set[str]:
        connection = await asyncpg.connect(url)
        try:
            return {row[0] for row in await connection.fetch("SELECT nspname FROM pg_namespace")}
        finally:
            await connection.close()

    return asyncio.run(ask())


def rows_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["what"]: row for row in report["rows"]}


def check_report(report: dict[str, Any]) -> None:
    assert report["version"] == 1
    rows = rows_of(report)
    assert set(rows) == {
        *(f"{what}, {tokens} tokens" for what in MEASURED_BY_SIZE for tokens in ("64", "1,024")),
        "peak memory of a process that put 300 groups, 64 tokens",
        "sample of 128, 7,000 bytes each, 300 stored",
        "sample of 128, 300 stored",
        "update_priorities of 300",
        "put into a table, 128 at once, 7,000 bytes each",
        "import sqlreplay",
    }
    for what, row in rows.items():
        for side in filter(None, (row["ours"], row["beside"])):
            assert 0 < side["low"] <= side["median"] <= side["high"], what
        assert (row["ratio"] is None) == (row["beside"] is None), what
        assert row["ratio"] is None or row["ratio"] > 0, what
        assert (row["verdict"] is None) == (row["target"] is None), what
        assert row["verdict"] in (None, "ok", "MISSED"), what
    machine = report["machine"]
    assert machine["stored"] == {"64 tokens": 300, "1024 tokens": 300}
    assert 0 < machine["group_bytes"]["64 tokens"] < machine["group_bytes"]["1024 tokens"]
    assert machine["python"]
    assert machine["synchronous"]


def test_the_benchmark_on_sqlite_measures_everything_and_leaves_nothing(tmp_path: Path) -> None:
    beside, temporary = tmp_path / "beside", tmp_path / "temporary"
    beside.mkdir()
    temporary.mkdir()
    url = f"sqlite:///{beside / 'replay.db'}"
    done = run_bench(*SMALL_RUN, "--json", "--url", url, folder=temporary)
    report = json.loads(done.stdout)
    check_report(report)
    assert report["machine"]["database"].startswith("SQLite 3")
    assert [*beside.iterdir(), *temporary.iterdir()] == []
    assert done.stderr == "", "there is no progress bar away from a terminal"


def test_the_benchmark_on_postgres_measures_everything_and_leaves_nothing(
    empty_postgres_url: str, tmp_path: Path
) -> None:
    before = schemas_of(empty_postgres_url)
    done = run_bench(*SMALL_RUN, "--json", "--url", empty_postgres_url, folder=tmp_path)
    report = json.loads(done.stdout)
    check_report(report)
    assert report["machine"]["database"].startswith("PostgreSQL ")
    assert schemas_of(empty_postgres_url) == before
    assert list(tmp_path.iterdir()) == []


def test_the_table_says_the_same_without_a_url(tmp_path: Path) -> None:
    """Without a URL it works in the temporary folder, which is then empty again."""
    printed = run_bench(*SMALL_RUN, folder=tmp_path).stdout
    for what in MEASURED_BY_SIZE:
        assert f"{what}, 1,024 tokens" in printed
    assert "SQLite 3" in printed
    assert "at least 0.6 of its throughput" in printed
    assert list(tmp_path.iterdir()) == []


def seconds(*values: float) -> Measure:
    return Measure(values)


@pytest.mark.parametrize(
    ("row", "ratio", "verdict"),
    [
        (Row("at most", seconds(2, 4, 9), seconds(2), at_most=2.0), 2.0, "ok"),
        (Row("at most", seconds(4.1), seconds(2), at_most=2.0), 2.05, "MISSED"),
        (Row("throughput", seconds(10), seconds(6), at_least=0.6), 0.6, "ok"),
        (Row("throughput", seconds(10), seconds(5), at_least=0.6), 0.5, "MISSED"),
        (Row("alone", seconds(0.6), at_most=0.5), None, "MISSED"),
        (Row("alone", seconds(0.4), at_most=0.5), None, "ok"),
        (Row("no target", seconds(3), seconds(1)), 3.0, ""),
    ],
)
def test_verdicts(row: Row, ratio: float | None, verdict: str) -> None:
    assert row.ratio == (None if ratio is None else pytest.approx(ratio))
    assert row.verdict == verdict
