"""The XTuner adapter under a stand-in of XTuner's own buffer, against the stand-in's own storage."""

import asyncio
import copy
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import numpy
import pytest
from pydantic import ValidationError
from sqlalchemy.engine import make_url
from xtuner_standins import (
    BetweenNode,
    Fifo,
    LogicNode,
    NaiveStorage,
    ReplayBuffer,
    RolloutState,
    ScalarNode,
    SetNode,
    Status,
    StorageItem,
    most_stale_first,
)

import sqlreplay
from sqlreplay.contrib.xtuner import SqlReplayBufferConfig, SqlStorage, checksum
from sqlreplay.errors import BadArgument, InvalidGroup, PayloadDamaged, QueryError, RunNotEmpty, StoreError

EVERYTHING = LogicNode("$and", [])


@contextmanager
def opened(url: str, **options: Any) -> Iterator[SqlStorage[RolloutState]]:
    arguments = {"item_type": RolloutState, "status_type": Status, "storage_item_type": StorageItem, **options}
    storage: SqlStorage[RolloutState] = SqlStorage(url, **arguments)
    try:
        yield storage
    finally:
        storage.close_and_wait()


def state(number: int, *, status: Status = Status.COMPLETED, step: int | None = 1, **fields: Any) -> RolloutState:
    return RolloutState(
        message=[{"role": "user", "content": f"question {number}"}],
        prompt_ids=[1, 2],
        response="r",
        response_ids=[5, 6],
        response_model_steps=None if step is None else [step, step],
        rollout_id=number,
        status=status,
        **fields,
    )


def item(number: int, task_name: str = "math", status: Status = Status.COMPLETED, staleness: int = 0) -> StorageItem:
    return StorageItem([state(number, status=status)], -7, -7, task_name, status, staleness)


def seen(items: list[Any]) -> list[tuple[Any, ...]]:
    """What must be the same in any storage; uids may have gaps."""
    return [(found.item, found.task_name, found.status, found.staleness) for found in items]


def carried(items: list[Any]) -> list[tuple[Any, ...]]:
    return [(found.uid, found.timestamp_id, *rest) for found, rest in zip(items, seen(items), strict=True)]


async def numbers(storage: SqlStorage[RolloutState], query: Any) -> list[int | None]:
    return [found.item[0].rollout_id for found in await storage.get(query)]


@pytest.mark.parametrize("make_policy", [Fifo, most_stale_first])
async def test_runs_under_xtuners_buffer_like_its_own_storage(url: str, make_policy: Any) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    with opened(url) as storage:
        real, naive = ReplayBuffer(make_policy(), storage), ReplayBuffer(make_policy(), NaiveStorage())
        train_step = 5
        for number in range(120):
            task_name = chance.choice(["math", "code"])
            action = chance.choice(["put"] * 5 + ["take", "get", "count", "refresh"])
            if action == "put":
                status = chance.choice([Status.COMPLETED] * 3 + [Status.ABORTED, Status.FAILED])
                group = [
                    state(number * 10 + sample, status=status, step=chance.choice([None, *range(train_step)]))
                    for sample in range(chance.randrange(4))
                ]
                await naive.put(copy.deepcopy(group), task_name, current_train_step=train_step)
                await real.put(group, task_name, current_train_step=train_step)
            elif action == "take":
                sizes = {"math": chance.randrange(4), "code": chance.randrange(4)}
                assert await real.take_batch(sizes) == await naive.take_batch(sizes)
            elif action == "get":
                asked = (chance.randrange(1, 4), task_name, chance.choice(list(Status)))
                assert await real.get(*asked) == await naive.get(*asked)
            elif action == "count":
                assert await real.count(task_name, Status.COMPLETED) == await naive.count(task_name, Status.COMPLETED)
            else:
                train_step += chance.randrange(3)
                thresholds = {"math": chance.randrange(1, 8), task_name: chance.randrange(1, 8)}
                expired = await naive.refresh_staleness(thresholds, train_step)
                assert await real.refresh_staleness(thresholds, train_step) == expired
            assert len(real) == len(naive)
        assert seen(await storage.get(EVERYTHING)) == seen(await naive._storage.get(EVERYTHING))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (EVERYTHING, [1, 2, 3, 4]),
        (LogicNode("$or", []), []),
        (ScalarNode("status", "$eq", Status.FAILED), [2]),
        (ScalarNode("staleness", "$gte", 2), [3, 4]),
        (ScalarNode("task_name", "$ne", "math"), [4]),
        (SetNode("status", "$in", [Status.FAILED, Status.ABORTED]), [2, 3]),
        (SetNode("staleness", "$not_in", [0, 3]), [2, 3]),
        (BetweenNode("staleness", 1, 2), [2, 3]),
        (LogicNode("$or", [ScalarNode("staleness", "$eq", 0), {"task_name": "code"}]), [1, 4]),
        ({"task_name": "math", "status": Status.COMPLETED}, [1]),
        ({"staleness": {"$gt": 0}, "task_name": "math"}, [2, 3]),
    ],
)
async def test_query_nodes_and_dicts(url: str, query: Any, expected: list[int]) -> None:
    with opened(url) as storage:
        await storage.put(item(1))
        await storage.put(item(2, status=Status.FAILED, staleness=1))
        await storage.put(item(3, status=Status.ABORTED, staleness=2))
        await storage.put(item(4, "code", staleness=3))
        assert await numbers(storage, query) == expected
        assert await storage.count(query) == len(expected)
        assert len(storage) == 4


async def test_unknown_field_is_refused(url: str) -> None:
    with opened(url) as storage:
        with pytest.raises(QueryError, match="staleness"):
            await storage.get(ScalarNode("stalenes", "$eq", 1))
        with pytest.raises(QueryError):
            await storage.count(LogicNode("$xor", []))


async def test_put_keeps_status_and_staleness_and_gives_its_own_uid(url: str) -> None:
    """Neither is derived from the samples, and a group put as expired keeps its response."""
    given = StorageItem([state(1, status=Status.COMPLETED)], 99, 98, "math", Status.EXPIRED, 17)
    with opened(url) as storage:
        first, second = await storage.put(given), await storage.put(item(2))
        found, _ = await storage.get(EVERYTHING)
        assert type(found) is StorageItem
        assert (found.uid, found.timestamp_id, found.task_name, found.staleness) == (first, first, "math", 17)
        assert found.status is Status.EXPIRED
        assert found.item == given.item
        assert first < second
        assert first != 99
        assert await numbers(storage, BetweenNode("staleness", 17, 17)) == [1]


async def test_refusals_store_nothing(url: str) -> None:
    with opened(url) as storage:
        with pytest.raises(InvalidGroup):
            await storage.put(StorageItem([], task_name="math"))
        with pytest.raises(InvalidGroup, match="item_type"):
            await storage.put(StorageItem([{"not": "a state"}], task_name="math"))  # type: ignore[list-item]
        with pytest.raises(BadArgument, match="task_name"):
            await storage.put(StorageItem([state(1)], task_name=""))
        with pytest.raises(BadArgument, match="status"):
            await storage.put(StorageItem([state(1)], task_name="math", status="unheard of"))  # type: ignore[arg-type]
        assert len(storage) == 0


async def test_update_keeps_uid_and_order_and_ignores_unknown_uids(url: str) -> None:
    with opened(url) as storage:
        uids = [await storage.put(item(number)) for number in range(3)]
        changed = await storage.get(SetNode("uid", "$in", uids[:2]))
        for found in changed:
            found.item[0].response = "changed"
            found.status, found.staleness = Status.ABORTED, 40
        gone = StorageItem([state(9)], max(uids) + 1000, 1, "math", Status.COMPLETED, 0)
        await storage.update([*changed, gone])
        after = await storage.get(EVERYTHING)
        assert [found.uid for found in after] == uids
        assert [found.timestamp_id for found in after] == uids
        assert [(found.item[0].response, found.status, found.staleness) for found in after] == [
            ("changed", Status.ABORTED, 40),
            ("changed", Status.ABORTED, 40),
            ("r", Status.COMPLETED, 0),
        ]


async def test_delete_ignores_unknown_uids(url: str) -> None:
    with opened(url) as storage:
        uids = [await storage.put(item(number)) for number in range(3)]
        await storage.delete([uids[1], uids[1], 10**9, -1])
        assert await numbers(storage, EVERYTHING) == [0, 2]
        await storage.delete([])
        assert len(storage) == 2


async def test_arrays_and_nested_dicts_survive(url: str) -> None:
    experts = numpy.arange(24, dtype=numpy.uint8).reshape(2, 3, 4)
    nested = {"a": {"b": [1, {"c": numpy.float32([0.5, numpy.inf])}], "none": None}, "bytes": b"\x00\xff"}
    with opened(url) as storage:
        await storage.put(StorageItem([state(1, routed_experts=experts, extra_fields=nested)], task_name="math"))
        saved = storage.state_dict()
        [found] = await storage.get(EVERYTHING)
        [sample] = found.item
        assert type(sample) is RolloutState
        assert sample.routed_experts.dtype == experts.dtype
        assert numpy.array_equal(sample.routed_experts, experts)
        assert sample.extra_fields["a"]["b"][1]["c"].tolist() == [0.5, float("inf")]
        assert sample.extra_fields["bytes"] == b"\x00\xff"
        assert sample.extra_fields["a"]["none"] is None
        await storage.delete([found.uid])
        storage.load_state_dict(saved)
        [again] = await storage.get(EVERYTHING)
        assert numpy.array_equal(again.item[0].routed_experts, experts)


async def test_two_storages_of_one_process_see_one_run(url: str) -> None:
    with opened(url) as first, opened(url) as second, opened(url, run="other") as other:
        uids = await asyncio.gather(*(storage.put(item(1)) for storage in (first, second) * 10))
        assert len(set(uids)) == 20
        assert len(first) == len(second) == 20
        assert len(other) == 0
        await second.delete(uids[:5])
        assert await first.count(EVERYTHING) == 15
        await other.delete(uids)
        await other.update([StorageItem([state(2)], uids[6], uids[6], "math", Status.FAILED, 1)])
        assert await first.count(ScalarNode("status", "$eq", Status.COMPLETED)) == 15


def test_everything_is_there_after_a_restart(url: str) -> None:
    with opened(url) as storage:
        asyncio.run(storage.put(item(1, staleness=3)))
        before = asyncio.run(storage.get(EVERYTHING))
    with opened(url) as storage:
        assert len(storage) == 1
        assert carried(asyncio.run(storage.get(EVERYTHING))) == carried(before)


async def test_pickles_by_configuration(url: str) -> None:
    with opened(url) as storage:
        await storage.put(item(1))
        twin = pickle.loads(pickle.dumps(storage))
        try:
            assert len(twin) == 1
            assert type((await twin.get(EVERYTHING))[0]) is StorageItem
        finally:
            await twin.close()


async def test_an_empty_storage_is_true(url: str) -> None:
    """`storage or NaiveStorage()` would otherwise keep everything in memory without a word."""
    with opened(url) as storage:
        assert storage
        assert len(storage) == 0


@pytest.fixture(params=["sqlite to postgres", "postgres to sqlite", "sqlite to sqlite"])
def two_urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    kinds = request.param.split(" to ")
    first, second = (request.getfixturevalue(f"{kind}_url") for kind in kinds)
    return first, f"sqlite:///{tmp_path / 'second.db'}" if first == second else second


async def test_state_goes_to_another_database(two_urls: tuple[str, str], tmp_path: Path) -> None:
    """Through XTuner's own save and resume, after updates and deletes have left gaps among the uids."""
    source, target = two_urls
    with opened(source) as storage, opened(target) as copied:
        uids = [
            await storage.put(item(number, chr(97 + number % 3), list(Status)[number % 7], number * 3 % 5))
            for number in range(20)
        ]
        await storage.delete(uids[::4])
        await storage.update((await storage.get(EVERYTHING))[::3])
        before = await storage.get(EVERYTHING)
        ReplayBuffer(Fifo(), storage).save(tmp_path)
        ReplayBuffer(Fifo(), copied).resume(tmp_path)
        assert carried(await copied.get(EVERYTHING)) == carried(before)
        assert copied.state_dict() == storage.state_dict()
        assert await copied.put(item(99)) > max(uids)
        assert carried((await copied.get(EVERYTHING))[:-1]) == carried(before)
        await copied.update(before[:2])
        await copied.delete(uids[-3:])
        assert len(copied) == len(before) + 1 - 3


async def test_state_keeps_what_xtuner_does_not_know(two_urls: tuple[str, str]) -> None:
    """Meta, priority, train steps and refreshed staleness of a run that sqlreplay's own buffer wrote."""
    source, target = two_urls
    meta = {"source": "wéb", "level": 3, "large": 2.0**60, "nested": {"list": [1, None, True, 0.1]}}

    async with sqlreplay.ReplayBuffer(source, item_type=RolloutState, policy="staleness") as buffer:
        await buffer.put([state(1, step=4)], "math", priority=0.25, meta=meta)
        await buffer.put([state(2, step=1)], "math", current_train_step=5)
        await buffer.put([state(3, step=3)], "math")
        await buffer.refresh_staleness(task_stale_thresholds={"math": 6, "idle": 9}, current_train_step=8)
        await buffer.put([state(4, step=2, seq_staleness=1)], "math")
        found = await buffer.find({})
        assert [(group.status, group.staleness) for group in found] == [
            (Status.COMPLETED, 3), (Status.EXPIRED, 6), (Status.COMPLETED, 4), (Status.COMPLETED, 1)
        ]  # fmt: skip
        assert [group.item[0].response for group in found] == ["r", "", "r", "r"]
        with opened(source) as storage:
            saved = storage.state_dict()
        steps = {name: task.train_step for name, task in (await buffer.stats()).tasks.items()}

    with opened(target) as storage:
        storage.load_state_dict(saved)
        assert storage.state_dict() == saved
    async with sqlreplay.ReplayBuffer(target, item_type=RolloutState, policy="staleness") as buffer:
        assert carried(await buffer.find({})) == carried(found)
        assert {name: task.train_step for name, task in (await buffer.stats()).tasks.items()} == steps
        [group] = await buffer.find({"meta.source": "wéb", "priority": 0.25, "meta.large": 2**60})
        assert group.item[0].rollout_id == 1
        counted = await buffer.refresh_staleness(task_stale_thresholds={"math": 6}, current_train_step=9)
        assert counted == {"math": 1}, "the group of step 2 is 6 behind; those of steps 3 and 4 are not"
        taken = await buffer.get(5, "math", Status.COMPLETED)
        assert [group[0].rollout_id for group in taken] == [3, 1]


async def test_state_is_plain_data(url: str) -> None:
    with opened(url) as storage:
        await storage.put(item(1))
        saved = storage.state_dict()
        assert plain(saved)
        through_msgpack = msgspec.msgpack.decode(msgspec.msgpack.encode(saved))
        assert through_msgpack == saved
        await storage.delete([saved["groups"][0]["uid"]])
        storage.load_state_dict(through_msgpack)
        assert await numbers(storage, EVERYTHING) == [1]


def plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(name) is str and plain(member) for name, member in value.items())
    if isinstance(value, list):
        return all(map(plain, value))
    return value is None or type(value) in (str, int, float, bool, bytes)


async def test_state_goes_into_an_empty_run_only(url: str) -> None:
    with opened(url) as storage, opened(url, run="other") as other:
        uid = await storage.put(item(1))
        saved = storage.state_dict()
        with pytest.raises(RunNotEmpty, match="run="):
            storage.load_state_dict(saved)
        with pytest.raises(BadArgument, match=f"such as {uid}"):
            other.load_state_dict(saved)
        assert (len(storage), len(other)) == (1, 0)
        assert other.state_dict()["tasks"] == {}
        await storage.delete([uid])
        other.load_state_dict(saved)
        assert (len(storage), len(other)) == (0, 1)


async def test_loaded_bytes_do_not_meet_those_about_to_be_freed(url: str) -> None:
    """The first life's bytes are freed in the background, under the ids that they had."""
    with opened(url) as storage:
        for number in range(30):
            await storage.put(item(number))
        saved = storage.state_dict()
        await storage.delete([group["uid"] for group in saved["groups"]])
        storage.load_state_dict(saved)
        await asyncio.sleep(0.3)
        assert await numbers(storage, EVERYTHING) == list(range(30))


async def test_an_empty_run_can_be_carried(two_urls: tuple[str, str]) -> None:
    with opened(two_urls[0]) as storage, opened(two_urls[1]) as copied:
        copied.load_state_dict(storage.state_dict())
        assert len(copied) == 0
        await copied.put(item(1))


def broken_states(saved: dict[str, Any]) -> Iterator[tuple[str, Any, type[Exception]]]:
    def changed(change: Any) -> dict[str, Any]:
        broken = copy.deepcopy(saved)
        change(broken)
        return broken

    def flip(broken: dict[str, Any]) -> None:
        part = broken["groups"][1]["parts"][0]
        part["body"] = part["body"][:-1] + bytes([part["body"][-1] ^ 1])

    yield "not a dict", [saved], BadArgument
    yield "another storage's", {"items": {}}, BadArgument
    yield "a later version", {**saved, "version": 2}, BadArgument
    yield "no checksum", {name: value for name, value in saved.items() if name != "checksum"}, PayloadDamaged
    yield "a flipped bit", changed(flip), PayloadDamaged
    yield "a group missing", changed(lambda broken: broken["groups"].pop()), PayloadDamaged
    yield "a group twice", changed(lambda broken: broken["groups"].append(broken["groups"][0])), PayloadDamaged
    yield "a part missing", changed(lambda broken: broken["groups"][0]["parts"].pop()), PayloadDamaged
    yield "a field missing", changed(lambda broken: broken["groups"][1].pop("staleness")), PayloadDamaged
    yield "a field too many", changed(lambda broken: broken["groups"][1].update(more=1)), PayloadDamaged
    yield "another type", changed(lambda broken: broken["groups"][1].update(staleness="1")), PayloadDamaged
    yield "another number", changed(lambda broken: broken["groups"][1].update(staleness=5)), PayloadDamaged
    yield "no such uid", changed(lambda broken: broken["groups"][1].update(uid=0)), PayloadDamaged
    yield "no object", changed(lambda broken: broken["groups"][1].update(meta={"a": object()})), PayloadDamaged
    twice = changed(lambda broken: broken["groups"].append(broken["groups"][0]))
    yield "a group twice, and signed", {**twice, "checksum": checksum(twice)}, PayloadDamaged
    unlisted = changed(lambda broken: broken["tasks"].clear())
    yield "a task not listed, and signed", {**unlisted, "checksum": checksum(unlisted)}, PayloadDamaged
    yield "tasks missing", changed(lambda broken: broken.pop("tasks")), PayloadDamaged


async def test_damaged_state_writes_nothing(url: str) -> None:
    with opened(url) as storage:
        uids = [await storage.put(item(number)) for number in range(3)]
        saved = storage.state_dict()
        await storage.delete(uids)
        for name, broken, error in broken_states(saved):
            with pytest.raises(error):
                storage.load_state_dict(broken)
            assert len(storage) == 0, name
        storage.load_state_dict(saved)
        assert await numbers(storage, EVERYTHING) == [0, 1, 2]


async def test_state_of_another_item_type_is_refused(url: str) -> None:
    with opened(url) as storage:
        uid = await storage.put(item(1))
        saved = storage.state_dict()
        await storage.delete([uid])
    with opened(url, item_type=dict, status_type=None) as storage:
        with pytest.raises(BadArgument, match="item_type"):
            storage.load_state_dict(saved)
        assert len(storage) == 0


async def test_a_far_uid_moves_the_sequence(two_urls: tuple[str, str]) -> None:
    """Further than is drawn one by one, and the next load finds the sequence beyond its own uids."""
    with opened(two_urls[0]) as storage, opened(two_urls[1]) as copied, opened(two_urls[1], run="b") as second:
        await storage.put(item(1))
        near = storage.state_dict()
        far = copy.deepcopy(near)
        far["groups"][0]["uid"] = 10**12
        far["checksum"] = checksum(far)
        copied.load_state_dict(far)
        second.load_state_dict(near)
        assert await second.put(item(2)) > 10**12
        assert await copied.put(item(2)) > 10**12


async def test_load_needs_no_more_than_use_of_the_sequence(postgres_url: str, sqlite_url: str) -> None:
    """Postgres only: a role that may draw from the sequence but not set it loads what is near, and far is an error."""
    role = "sqlreplay_loader_" + make_url(postgres_url).database[-12:]  # type: ignore[index]
    owner = await asyncpg.connect(postgres_url)
    try:
        await owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'loader'")
        await owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
        await owner.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}")
        loader = make_url(postgres_url).set(username=role, password="loader").render_as_string(hide_password=False)
        with opened(sqlite_url) as storage, opened(loader) as copied:
            for number in range(3):
                await storage.put(item(number))
            near = storage.state_dict()
            far = copy.deepcopy(near)
            far["groups"][0]["uid"] = 10**12
            far["checksum"] = checksum(far)
            with pytest.raises(StoreError, match="GRANT UPDATE ON SEQUENCE"):
                copied.load_state_dict(far)
            assert len(copied) == 0
            near["groups"][2]["uid"] = 50_000
            near["checksum"] = checksum(near)
            copied.load_state_dict(near)
            assert await copied.put(item(9)) > 50_000
    finally:
        await owner.execute(f"DROP OWNED BY {role}")
        await owner.execute(f"DROP ROLE {role}")
        await owner.close()


async def test_config_builds_a_buffer_of_xtuners_types(url: str) -> None:
    config = SqlReplayBufferConfig(url=url, policy="staleness", run="one", item_type=RolloutState, status_type=Status)
    buffer = config.build()
    try:
        for number, step in enumerate((4, 1, 3)):
            await buffer.put([state(number, step=step)], "math", current_train_step=6, stale_threshold=5)
        assert await buffer.count("math", Status.COMPLETED) == 3
        batches, counts = await buffer.take_batch({"math": 2})
        assert counts == {"math": 2}
        assert [group[0].rollout_id for group in batches["math"]] == [1, 2]
        assert type(batches["math"][0][0]) is RolloutState
        [left] = await buffer.find({})
        assert left.status is Status.COMPLETED
    finally:
        await buffer.close()
    with opened(url, run="one") as storage:
        assert await numbers(storage, EVERYTHING) == [0]


def test_config_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValidationError, match="polcy"):
        SqlReplayBufferConfig(polcy="fifo")  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="staleness"):
        SqlReplayBufferConfig(policy="newest")  # type: ignore[arg-type]
