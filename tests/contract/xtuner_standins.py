"""What sqlreplay knows of XTuner, which cannot be installed here: its classes by their contract, in short.

The storage is deliberately naive: a dict that is scanned. What it answers is what the adapter must answer.
"""

import itertools
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Status(str, Enum):
    INIT = "init"
    COMPLETED = "completed"
    ABORTED = "aborted"
    EXPIRED = "expired"
    FAILED = "failed"
    FILTERED = "filtered"
    ARCHIVED = "archived"


class RolloutState(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    message: list[dict[str, Any]]
    prompt_ids: list[int] | None = None
    tokens: list[int] | None = None
    response: str | None = None
    response_ids: list[int] | None = None
    logprobs: list[float] | None = None
    routed_experts: Any = None
    response_mask: list[int] | None = None
    response_model_steps: list[int] | None = None
    seq_staleness: int = 0
    reward: dict[str, Any] | None = None
    rollout_id: int | None = None
    status: Status = Status.INIT
    extra_fields: dict[str, Any] = Field(default_factory=dict)


@dataclass
class StorageItem:
    item: list[RolloutState]
    uid: int | None = None
    timestamp_id: int | None = None
    task_name: str = ""
    status: Status = Status.INIT
    staleness: int = 0


@dataclass
class LogicNode:
    relation: str
    conditions: list[Any]


@dataclass
class ScalarNode:
    field: str
    op: str
    value: Any


@dataclass
class SetNode:
    field: str
    op: str
    value: Sequence[Any]


@dataclass
class BetweenNode:
    field: str
    lower: Any
    upper: Any


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda found, value: found == value,
    "$ne": lambda found, value: found != value,
    "$gt": lambda found, value: found > value,
    "$gte": lambda found, value: found >= value,
    "$lt": lambda found, value: found < value,
    "$lte": lambda found, value: found <= value,
    "$in": lambda found, value: found in value,
    "$not_in": lambda found, value: found not in value,
}


def matches(node: Any, item: StorageItem) -> bool:
    match node:
        case LogicNode("$and", conditions):
            return all(matches(condition, item) for condition in conditions)
        case LogicNode("$or", conditions):
            return any(matches(condition, item) for condition in conditions)
        case BetweenNode(name, lower, upper):
            return bool(lower <= getattr(item, name) <= upper)
        case ScalarNode(name, op, value) | SetNode(name, op, value):
            return COMPARE[op](getattr(item, name), value)
        case dict():
            return all(getattr(item, name) == value for name, value in node.items())
    raise TypeError(node)


class StorageBackend(ABC):
    @abstractmethod
    async def put(self, item: StorageItem) -> int: ...
    @abstractmethod
    async def get(self, query: Any) -> list[StorageItem]: ...
    @abstractmethod
    async def count(self, query: Any) -> int: ...
    @abstractmethod
    async def delete(self, uids: list[int]) -> None: ...
    @abstractmethod
    async def update(self, items: list[StorageItem]) -> None: ...
    @abstractmethod
    def __len__(self) -> int: ...
    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...
    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class NaiveStorage(StorageBackend):
    """All in one dict; copies go in and out, so that only `update` changes what is stored."""

    def __init__(self) -> None:
        self._items: dict[int, bytes] = {}
        self._numbers = itertools.count(1)

    async def put(self, item: StorageItem) -> int:
        uid = next(self._numbers)
        self._store(StorageItem(item.item, uid, uid, item.task_name, item.status, item.staleness))
        return uid

    def _store(self, item: StorageItem) -> None:
        self._items[item.uid or 0] = pickle.dumps(item)

    async def get(self, query: Any) -> list[StorageItem]:
        return [item for item in map(pickle.loads, self._items.values()) if matches(query, item)]

    async def count(self, query: Any) -> int:
        return len(await self.get(query))

    async def delete(self, uids: list[int]) -> None:
        for uid in uids:
            self._items.pop(uid, None)

    async def update(self, items: list[StorageItem]) -> None:
        for item in items:
            if item.uid in self._items:
                self._store(item)

    def __len__(self) -> int:
        return len(self._items)

    def state_dict(self) -> dict[str, Any]:
        return {"items": dict(self._items)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._items = dict(state["items"])
        self._numbers = itertools.count(max(self._items, default=0) + 1)


@dataclass
class Fifo:
    key: Callable[[StorageItem], Any] = field(default=lambda item: item.timestamp_id)

    async def put(self, item: StorageItem, storage: Any) -> None:
        if item.item:
            await storage.put(item)

    async def get(self, count: int, query: Any, storage: Any) -> list[StorageItem]:
        records = await storage.get(query)
        records.sort(key=self.key)
        await storage.delete([record.uid for record in records[:count]])
        return list(records[:count])


def most_stale_first() -> Fifo:
    return Fifo(key=lambda item: (-item.staleness, item.timestamp_id))


class ReplayBuffer:
    def __init__(self, policy: Fifo, storage_backend: Any) -> None:
        self._policy = policy
        self._storage = storage_backend

    async def put(self, items: list[RolloutState], task_name: str, *, current_train_step: int) -> None:
        refresh_staleness(items, current_train_step)
        staleness = max((item.seq_staleness for item in items), default=0)
        status = items[0].status if items else Status.INIT
        await self._policy.put(StorageItem(items, None, None, task_name, status, staleness), self._storage)

    async def get(self, count: int, task_name: str, status: Status) -> list[list[RolloutState]]:
        return [item.item for item in await self._policy.get(count, of(task_name, status), self._storage)]

    async def count(self, task_name: str, status: Status) -> int:
        return int(await self._storage.count(of(task_name, status)))

    async def take_batch(self, sizes: dict[str, int]) -> dict[str, list[list[RolloutState]]]:
        return {name: await self.get(size, name, Status.COMPLETED) for name, size in sizes.items()}

    async def refresh_staleness(self, thresholds: dict[str, int], current_train_step: int) -> dict[str, int]:
        expired = dict.fromkeys(thresholds, 0)
        for name, threshold in thresholds.items():
            looked_at = [Status.COMPLETED, Status.ABORTED]
            statuses = LogicNode("$or", [ScalarNode("status", "$eq", status) for status in looked_at])
            records = await self._storage.get(LogicNode("$and", [ScalarNode("task_name", "$eq", name), statuses]))
            for record in records:
                refresh_staleness(record.item, current_train_step)
                record.staleness = max(item.seq_staleness for item in record.item)
                if record.staleness >= threshold:
                    expired[name] += 1
                    record.status = Status.EXPIRED
                    for item in record.item:
                        item.status, item.response, item.response_ids = Status.EXPIRED, "", []
                        item.response_model_steps = []
            await self._storage.update(records)
        return expired

    def __len__(self) -> int:
        return len(self._storage)

    def save(self, folder: Path) -> None:
        import torch

        torch.save(self._storage.state_dict(), folder / "replay_buffer.pth")

    def resume(self, folder: Path) -> None:
        import torch

        if len(self) != 0:
            raise RuntimeError("the buffer is not empty")
        self._storage.load_state_dict(torch.load(folder / "replay_buffer.pth", weights_only=True))


def of(task_name: str, status: Status) -> LogicNode:
    return LogicNode("$and", [ScalarNode("task_name", "$eq", task_name), ScalarNode("status", "$eq", status)])


def refresh_staleness(items: list[RolloutState], current_train_step: int) -> None:
    for item in items:
        steps = item.response_model_steps
        item.seq_staleness = current_train_step - min(steps) - 1 if steps else 0
