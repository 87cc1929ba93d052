"""Databases of past releases, kept as files, open with today's library and give back all that was put in."""

import asyncio
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy
import pytest
from make_frozen import EXPECTED, FROZEN, PUT, TRAIN_STEP, expected_group, main

from sqlreplay import ReplayBuffer, RolloutState
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
