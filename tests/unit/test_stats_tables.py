"""What `stats` says of tables: counters and capacity from the task's own row, and nothing of tasks that are none."""

import subprocess
import sys

import pytest

from sqlreplay import ReplayBuffer, Status, TableConfig
from sqlreplay.cli.stats import of_most, tables_of
from sqlreplay.insights import Stats

TABLE_FIELDS = ("size", "size_bytes", "inserted", "sampled", "removed", "evicted", "max_size", "max_bytes")


async def filled(url: str) -> Stats:
    """Five groups into a table of three, two draws, one take; one group beside it."""
    tables = {"math": TableConfig(max_size=3)}
    async with ReplayBuffer(url, item_type=dict, tables=tables, seed=1) as buffer:
        for number in range(5):
            await buffer.put([{"number": number}], "math")
        await buffer.put([{"number": 9}], "code")
        await buffer.sample(2, "math", timeout=10)
        await buffer.get(1, "math", Status.COMPLETED)
        return await buffer.stats()


async def test_a_table_shows_what_it_has_seen(url: str) -> None:
    math = (await filled(url)).tasks["math"]
    assert math.is_table
    assert (math.inserted, math.sampled, math.removed, math.evicted) == (5, 3, 3, 2)
    assert (math.size, math.max_size, math.max_bytes) == (2, 3, None)
    assert (math.groups, math.bytes) == (math.size, math.size_bytes)


async def test_a_task_that_is_no_table_shows_nothing_of_one(url: str) -> None:
    stats = await filled(url)
    code = stats.tasks["code"]
    assert not code.is_table
    assert [getattr(code, name) for name in TABLE_FIELDS] == [None] * len(TABLE_FIELDS)
    scalars = stats.scalars("replay/")
    assert scalars["replay/math/evicted"] == 2.0
    assert scalars["replay/math/max_size"] == 3.0
    missing = {
        "replay/max_size",
        "replay/max_bytes",
        "replay/math/max_bytes",
        *(f"replay/code/{n}" for n in TABLE_FIELDS),
    }
    assert not missing & set(scalars)


async def test_a_capacity_of_the_run_makes_every_task_a_table(url: str) -> None:
    async with ReplayBuffer(url, item_type=dict, max_size=3, max_bytes=10_000) as buffer:
        for number in range(4):
            await buffer.put([{"number": number}], "math")
        await buffer.put([{"number": 9}], "code")
        stats = await buffer.stats()
    assert (stats.max_size, stats.max_bytes) == (3, 10_000)
    math, code = stats.tasks["math"], stats.tasks["code"]
    assert (math.size, math.inserted, math.evicted, math.max_size) == (2, 4, 2, None)
    assert (code.size, code.inserted, code.evicted) == (1, 1, 0)
    assert stats.scalars()["max_bytes"] == 10_000.0


async def test_a_table_that_holds_nothing_is_there(url: str) -> None:
    async with ReplayBuffer(url, item_type=dict, tables={"math": TableConfig(max_bytes=500)}) as buffer:
        math = (await buffer.stats()).tasks["math"]
    assert (math.groups, math.size, math.inserted, math.max_bytes) == (0, 0, 0, 500)


async def test_archived_groups_count_for_no_capacity(url: str) -> None:
    async with ReplayBuffer(url, item_type=dict, tables={"math": TableConfig(max_size=1)}) as buffer:
        await buffer.put([{"number": 1}], "math")
        [first] = await buffer.find()
        first.status = "archived"
        await buffer.update([first])
        await buffer.put([{"number": 2}], "math")
        math = (await buffer.stats()).tasks["math"]
    assert (math.groups, math.size, math.evicted) == (2, 1, 0)


async def test_plain_data_has_the_fields(url: str) -> None:
    tasks = (await filled(url)).as_dict()["tasks"]
    assert {name: tasks["math"][name] for name in ("inserted", "sampled", "removed", "evicted", "max_size")} == {
        "inserted": 5,
        "sampled": 3,
        "removed": 3,
        "evicted": 2,
        "max_size": 3,
    }
    assert tasks["code"]["inserted"] is None


def shown(url: str) -> str:
    arguments = [sys.executable, "-W", "error", "-m", "sqlreplay", "stats", "--url", url]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True).stdout


def cells(text: str, first: str) -> list[list[str]]:
    lines = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in text.splitlines() if "│" in line]
    return [line[1:] for line in lines if line[0] == first]


async def test_the_command_shows_tables_below_the_tasks(sqlite_url: str) -> None:
    stats = await filled(sqlite_url)
    text = shown(sqlite_url)
    [_, math] = cells(text, "math")
    assert math[:5] == ["5", "3", "3", "2", "2 / 3 (66 %)"]
    assert cells(text, "run")[0][:5] == ["5", "3", "3", "2", "2 / -"]
    assert len(cells(text, "code")) == 1
    assert tables_of(stats).row_count == 1


async def test_the_command_is_silent_about_tables_where_there_are_none(sqlite_url: str) -> None:
    async with ReplayBuffer(sqlite_url, item_type=dict) as buffer:
        await buffer.put([{"number": 1}], "math")
    assert "evicted" not in shown(sqlite_url)


@pytest.mark.parametrize(
    ("held", "most", "text"), [(1, 3, "1 / 3 (33 %)"), (0, None, "0 / -"), (None, 2, "0 / 2 (0 %)")]
)
def test_capacity_use(held: int | None, most: int | None, text: str) -> None:
    assert of_most(held, most, str) == text
