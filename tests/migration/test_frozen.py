"""Databases of past releases, kept as files, open with today's library and give back all that was put in."""

import asyncio
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy
import pytest
from make_frozen import EXPECTED, FROZEN, PUT, TRAIN_STEP, expected_group, main

from sqlreplay import Prioritized, ReplayBuffer, RolloutState, TableConfig
from sqlreplay.store.schema import head_revision, known_revisions


@pytest.fixture(params=known_revisions())
def frozen(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the frozen file of a revision; the files themselves are never opened."""
    source = FROZEN / f"{request.param}.db"
    assert source.exists(), f"{source} is missing. Type: python tests/migration/make_frozen.py"
    return Path(shutil.copy(source, tmp_path / "replay.db"))


def plain(items: list[RolloutState]) -> list[dict[str, Any]]:
    """Arrays have no truth value: compare their bytes, type and shape."""
    dumped = [item.model_dump() for item in items]
    for item in dumped:
        array = item["extra_fields"].pop("array")
        assert isinstance(array, numpy.ndarray)
        item["array"] = (array.dtype.str, array.shape, array.tobytes())
    return dumped


def test_files_are_small_and_whole() -> None:
    """No journal is left beside them, so that one file is everything."""
    for path in FROZEN.glob("*.db"):
        assert path.stat().st_size < 300_000
    assert {path.suffix for path in FROZEN.iterdir()} == {".db"}
    assert {path.stem for path in FROZEN.iterdir()} == set(known_revisions())


async def test_everything_comes_out(frozen: Path) -> None:
    async with ReplayBuffer(frozen, run="frozen", policy="staleness") as buffer:
        assert await buffer.size() == len(PUT)
        for (task_name, status), numbers in EXPECTED.items():
            assert await buffer.count(task_name, status) == len(numbers)
            taken = await buffer.get(99, task_name, status)
            assert [items[0].group_id for items in taken] == numbers
            for number, items in zip(numbers, taken, strict=True):
                assert plain(items) == plain(expected_group(number, status))
        assert await buffer.size() == 0


async def test_columns_come_out(frozen: Path) -> None:
    """What queries and orders ask for survived, and the store goes on from where it was."""
    async with ReplayBuffer(frozen, run="frozen") as buffer:
        found = await buffer.find({"meta.source": "bücher", "meta.is_new": True})
        assert [(item.task_name, item.item[0].group_id) for item in found] == [("code", 3)]
        assert await buffer.count_where({"meta.difficulty": {"$gte": 0.1}}) == 2
        assert await buffer.count_where({"priority": 2.5}) == 1
        assert await buffer.count_where({"num_tokens": {"$gt": 0}}) == len(PUT)
        stored = await buffer.find()
        assert [item.item[0].group_id for item in stored] == list(range(1, len(PUT) + 1))
        uid = await buffer.put(expected_group(5, "completed"), "math")
        assert uid is not None
        assert uid > stored[-1].uid
        expired = await buffer.refresh_staleness(
            task_stale_thresholds={"math": 1, "code": 1}, current_train_step=TRAIN_STEP + 1
        )
        assert sum(expired.values()) == 6


async def test_a_task_becomes_a_table(frozen: Path) -> None:
    """What was put before there were tables is sampled by its priority, gives way to a capacity, and is taken."""
    table = TableConfig(sampler=Prioritized(1.0), max_size=5, max_times_sampled=0)
    async with ReplayBuffer(frozen, run="frozen", tables={"math": table}) as buffer:
        assert await buffer.count_where({"task_name": "math"}) == table.max_size
        samples = await buffer.sample(3, "math", timeout=30)
        uids = {items[0].group_id: info.uid for items, info in samples}
        found = {items[0].group_id: (info.priority, info.probability) for items, info in samples}
        assert found == {1: (1.0, 1.0 / 4.5), 2: (2.5, 2.5 / 4.5), 8: (1.0, 1.0 / 4.5)}
        for items, info in samples:
            assert (info.table_size, info.times_sampled) == (5, 1)
            assert plain(items) == plain(expected_group(items[0].group_id or 0, "completed"))

        stored = await buffer.put(expected_group(5, "completed"), "math", priority=0.5)
        assert stored is not None
        assert stored.evicted == (uids[1],)
        assert await buffer.update_priorities("math", {uids[8]: 5.0, uids[1]: 1.0}) == [uids[1]]
        samples = await buffer.sample(3, "math", timeout=30)
        found = {items[0].group_id: (info.priority, info.probability) for items, info in samples}
        assert found == {2: (2.5, 2.5 / 8.0), 5: (0.5, 0.5 / 8.0), 8: (5.0, 5.0 / 8.0)}

        for status, numbers in (("completed", [2, 8, 5]), ("expired", [4, 6])):
            taken = await buffer.get(99, "math", status)
            assert [items[0].group_id for items in taken] == numbers
            for number, items in zip(numbers, taken, strict=True):
                assert plain(items) == plain(expected_group(number, status))
        assert await buffer.count_where({"task_name": "code"}) == await buffer.size() == 3


async def test_newest_file_is_what_the_script_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A revision that changed after its file was written is found here: the tables must be the same."""
    monkeypatch.setattr("make_frozen.FROZEN", tmp_path)
    await asyncio.to_thread(main)
    tables = []
    for folder in (tmp_path, FROZEN):
        connection = sqlite3.connect(f"file:{folder / head_revision()}.db?immutable=1", uri=True)
        tables.append(connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall())
        connection.close()
    assert tables[0] == tables[1], "Type: python tests/migration/make_frozen.py"
