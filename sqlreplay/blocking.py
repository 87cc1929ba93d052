"""BlockingReplayBuffer: the same verbs without await, from any number of threads."""

from collections.abc import Coroutine, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Generic, Literal

from typing_extensions import TypeVar

from sqlreplay.buffer import ReplayBuffer
from sqlreplay.config import SchemaMode
from sqlreplay.insights import Stats
from sqlreplay.policy import Policy
from sqlreplay.records import Expiry, RolloutState, Status, StorageItem

__all__ = ["BlockingReplayBuffer"]

T = TypeVar("T", default=RolloutState)
R = TypeVar("R")


class BlockingReplayBuffer(Generic[T]):
    """A `ReplayBuffer` for code that has no event loop, or does not want to know of one.

    with BlockingReplayBuffer("sqlite:///replay.db") as buffer:
        buffer.put(group, "math")
        batches, counts = buffer.take_batch({"math": 64}, timeout=30)
    """

    def __init__(
        self,
        url: str | Path | None = None,
        *,
        run: str = "default",
        policy: str | Policy = "fifo",
        item_type: type[T] = RolloutState,  # type: ignore[assignment]
        status_type: type[Enum] | None = None,
        expiry: Expiry = "group",
        fresh: bool = False,
        schema: SchemaMode = "upgrade",
        postgres_schema: str | None = None,
        synchronous: Literal["normal", "full"] = "normal",
        busy_timeout_s: float = 60.0,
        pool_size: int = 5,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name != "self"}
        self._buffer: ReplayBuffer[T] = ReplayBuffer(**arguments)

    def __repr__(self) -> str:
        return f"Blocking{self._buffer!r}"

    def __enter__(self) -> "BlockingReplayBuffer[T]":
        try:
            self._wait(self._buffer._open_run())
        except BaseException:
            self.close()  # from here: on the store's thread it would wait for its own end
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._buffer)

    def __bool__(self) -> bool:
        return True

    def _wait(self, verb: Coroutine[Any, Any, R]) -> R:
        """Run an async verb on the store's thread and block until it is done."""
        try:
            thread = self._buffer.joined_thread()
        except BaseException:
            verb.close()
            raise
        return thread.wait(verb)

    def close(self) -> None:
        """Store what was put, give back the connections. Further verbs raise `StoreClosed`."""
        self._buffer.close_and_wait()

    def put(
        self,
        items: Sequence[T],
        task_name: str,
        *,
        model_step: int | None = None,
        current_train_step: int | None = None,
        stale_threshold: int | None = None,
        token_stale_threshold: int | None = None,
        expired_groups_retryable: bool = True,
        priority: float = 1.0,
        meta: Mapping[str, Any] | None = None,
    ) -> int | None:
        """Store one group and return its uid, once it is committed; None for an empty or a dropped group."""
        return self._wait(
            self._buffer.put(
                items,
                task_name,
                model_step=model_step,
                current_train_step=current_train_step,
                stale_threshold=stale_threshold,
                token_stale_threshold=token_stale_threshold,
                expired_groups_retryable=expired_groups_retryable,
                priority=priority,
                meta=meta,
            )
        )

    def get(
        self, batch_size: int, task_name: str, group_status: Any, *, train_step: int | None = None
    ) -> list[list[T]]:
        """Take and remove up to so many groups of a task and status, in the policy's order."""
        return self._wait(self._buffer.get(batch_size, task_name, group_status, train_step=train_step))

    def take_batch(
        self,
        task_batch_sizes: Mapping[str, int],
        *,
        group_status: Any = Status.COMPLETED,
        where: Any = None,
        timeout: float | None = None,
        require_full: bool = False,
        max_tokens: int | None = None,
        train_step: int | None = None,
    ) -> tuple[dict[str, list[list[T]]], dict[str, int]]:
        """Take groups of several tasks in one transaction: all of it happens or none. Returns groups and counts."""
        return self._wait(
            self._buffer.take_batch(
                task_batch_sizes,
                group_status=group_status,
                where=where,
                timeout=timeout,
                require_full=require_full,
                max_tokens=max_tokens,
                train_step=train_step,
            )
        )

    def count(self, task_name: str, group_status: Any) -> int:
        """Return how many unleased groups of this task have this status."""
        return self._wait(self._buffer.count(task_name, group_status))

    def count_statuses(self, task_names: Sequence[str], statuses: Sequence[Any]) -> dict[str, dict[Any, int]]:
        """Return the counts of several tasks and statuses, under the very keys that were given."""
        return self._wait(self._buffer.count_statuses(task_names, statuses))

    def is_ready(self, task_batch_sizes: Mapping[str, int], *, group_status: Any = Status.COMPLETED) -> bool:
        """Tell whether every task has as many unleased groups as asked."""
        return self._wait(self._buffer.is_ready(task_batch_sizes, group_status=group_status))

    def size(self) -> int:
        """Return how many groups the run holds, in any status."""
        return self._wait(self._buffer.size())

    def refresh_staleness(
        self,
        *,
        task_stale_thresholds: Mapping[str, int],
        task_token_stale_thresholds: Mapping[str, int | None] | None = None,
        expired_groups_retryable_by_task: Mapping[str, bool] | None = None,
        current_train_step: int,
        statuses: Sequence[Any] | None = None,
    ) -> dict[str, int]:
        """Set the tasks' train step, expire what is past its threshold, and return how many groups did, by task."""
        return self._wait(
            self._buffer.refresh_staleness(
                task_stale_thresholds=task_stale_thresholds,
                task_token_stale_thresholds=task_token_stale_thresholds,
                expired_groups_retryable_by_task=expired_groups_retryable_by_task,
                current_train_step=current_train_step,
                statuses=statuses,
            )
        )

    def find(
        self,
        where: Any = None,
        *,
        order_by: str | None = None,
        limit: int | None = None,
        after: int | None = None,
    ) -> list[StorageItem[T]]:
        """Read groups without taking them, in the order of a field (`"-priority"` for the largest first)."""
        return self._wait(self._buffer.find(where, order_by=order_by, limit=limit, after=after))

    def count_where(self, where: Any) -> int:
        """Return how many groups of the run a query matches, in any status."""
        return self._wait(self._buffer.count_where(where))

    def delete(self, uids: Sequence[int]) -> int:
        """Delete groups by uid and return how many there were; unknown uids are no error."""
        return self._wait(self._buffer.delete(uids))

    def update(self, items: Sequence[StorageItem[T]]) -> int:
        """Store changed items under the uid they have, and return how many were still there."""
        return self._wait(self._buffer.update(items))

    def stats(self) -> Stats:
        """Return what the run holds and what this process has done."""
        return self._wait(self._buffer.stats())
