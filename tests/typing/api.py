"""A user's file: mypy strict must accept every line as it stands."""

from dataclasses import dataclass
from typing import assert_type

from sqlreplay import BlockingReplayBuffer, Plan, ReplayBuffer, RolloutState, Status, StorageItem
from sqlreplay.store import GroupColumns


@dataclass
class Sample:
    text: str


class ShortestFirst:
    def plan(self, columns: GroupColumns) -> Plan:
        return Plan(order_by=(columns.num_tokens.asc(), columns.uid.asc()))


async def asynchronous(group: list[RolloutState]) -> None:
    async with ReplayBuffer("sqlite:///replay.db", policy="staleness") as buffer:
        assert_type(await buffer.put(group, "math", model_step=3), int | None)
        batches, counts = await buffer.take_batch({"math": 64}, timeout=1.0)
        assert_type(batches, dict[str, list[list[RolloutState]]])
        assert_type(counts, dict[str, int])
        assert_type(await buffer.find({"uid": 1}), list[StorageItem[RolloutState]])


def blocking() -> None:
    with BlockingReplayBuffer("sqlite:///replay.db", policy=ShortestFirst(), item_type=Sample) as buffer:
        buffer.put([Sample("a")], "math")
        assert_type(buffer.get(1, "math", Status.COMPLETED), list[list[Sample]])
