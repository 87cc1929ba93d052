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
from sqlreplay.putting import Priority
from sqlreplay.records import Expiry, RolloutState, Status, StorageItem
from sqlreplay.rules import OnFull, TableConfig
from sqlreplay.sampling import Sample
from sqlreplay.store import Stored

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
        tables: Mapping[str, TableConfig] | None = None,
        max_size: int | None = None,
        max_bytes: int | None = None,
        on_full: OnFull = "evict",
        seed: int | None = None,
        fresh: bool = False,
        schema: SchemaMode = "upgrade",
        postgres_schema: str | None = None,
        synchronous: Literal["normal", "full"] = "normal",
        busy_timeout_s: float = 60.0,
        pool_size: int = 5,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name != "self"}
        self.unblocked: ReplayBuffer[T] = ReplayBuffer(**arguments)

    def __repr__(self) -> str:
        return f"Blocking{self.unblocked!r}"

    def __enter__(self) -> "BlockingReplayBuffer[T]":
        try:
            self._wait(self.unblocked._open_run())
        except BaseException:
            self.close()  # from here: on the store's thread it would wait for its own end
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.unblocked)

    def __bool__(self) -> bool:
        return True

    def _wait(self, verb: Coroutine[Any, Any, R]) -> R:
        """Run an async verb on the store's thread and block until it is done."""
        try:
            thread = self.unblocked.joined_thread()
        except BaseException:
            verb.close()
            raise
        return thread.wait(verb)

    def close(self) -> None:
        """Store what was put, give back the connections. Further verbs raise `StoreClosed`."""
        self.unblocked.close_and_wait()

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
        priority: Priority = 1.0,
        numbers: Mapping[str, float] | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Stored | None:
        """Store one group and return its uid, once it is committed; None for an empty or a dropped group."""
        return self._wait(
            self.unblocked.put(
                items,
                task_name,
                model_step=model_step,
                current_train_step=current_train_step,
                stale_threshold=stale_threshold,
                token_stale_threshold=token_stale_threshold,
                expired_groups_retryable=expired_groups_retryable,
                priority=priority,
                numbers=numbers,
                meta=meta,
                timeout=timeout,
            )
        )

    def get(
        self, batch_size: int, task_name: str, group_status: Any, *, train_step: int | None = None
    ) -> list[list[T]]:
        """Take and remove up to so many groups of a task and status, in the policy's order."""
        return self._wait(self.unblocked.get(batch_size, task_name, group_status, train_step=train_step))

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
            self.unblocked.take_batch(
                task_batch_sizes,
                group_status=group_status,
                where=where,
                timeout=timeout,
                require_full=require_full,
                max_tokens=max_tokens,
                train_step=train_step,
            )
        )

    def sample(
        self,
        n: int,
        task_name: str,
        *,
        group_status: Any = Status.COMPLETED,
        where: Any = None,
        timeout: float | None = None,
    ) -> list[Sample[list[T]]]:
        """Draw n different groups by the table's sampler. They stay until drawn `max_times_sampled` times."""
        return self._wait(self.unblocked.sample(n, task_name, group_status=group_status, where=where, timeout=timeout))

    def sample_mixed(
        self,
        n: int,
        task_name: str,
        *,
        fresh_ratio: float = 0.5,
        where: Any = None,
        timeout: float | None = None,
    ) -> list[Sample[list[T]]]:
        """Draw n different groups in one transaction: the oldest that were never drawn, then replay by the sampler."""
        return self._wait(
            self.unblocked.sample_mixed(n, task_name, fresh_ratio=fresh_ratio, where=where, timeout=timeout)
        )

    def update_priorities(self, task_name: str, priorities: Mapping[int, float]) -> list[int]:
        """Set priorities by uid in one transaction, and return the uids that the task does not hold (any more)."""
        return self._wait(self.unblocked.update_priorities(task_name, priorities))

    def set_table(self, task_name: str, config: TableConfig) -> None:
        """Give a table other settings, for every process; its groups get new keys, which costs what it holds."""
        return self._wait(self.unblocked.set_table(task_name, config))

    def set_capacity(
        self, *, max_size: int | None = None, max_bytes: int | None = None, on_full: OnFull = "evict"
    ) -> None:
        """Give the run as a whole another capacity, for every process; without arguments it has none."""
        return self._wait(self.unblocked.set_capacity(max_size=max_size, max_bytes=max_bytes, on_full=on_full))

    def count(self, task_name: str, group_status: Any) -> int:
        """Return how many unleased groups of this task have this status."""
        return self._wait(self.unblocked.count(task_name, group_status))

    def count_statuses(self, task_names: Sequence[str], statuses: Sequence[Any]) -> dict[str, dict[Any, int]]:
        """Return the counts of several tasks and statuses, under the very keys that were given."""
        return self._wait(self.unblocked.count_statuses(task_names, statuses))

    def is_ready(self, task_batch_sizes: Mapping[str, int], *, group_status: Any = Status.COMPLETED) -> bool:
        """Tell whether every task has as many unleased groups as asked."""
        return self._wait(self.unblocked.is_ready(task_batch_sizes, group_status=group_status))

    def size(self) -> int:
        """Return how many groups the run holds, in any status."""
        return self._wait(self.unblocked.size())

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
            self.unblocked.refresh_staleness(
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
        return self._wait(self.unblocked.find(where, order_by=order_by, limit=limit, after=after))

    def count_where(self, where: Any) -> int:
        """Return how many groups of the run a query matches, in any status."""
        return self._wait(self.unblocked.count_where(where))

    def delete(self, uids: Sequence[int]) -> int:
        """Delete groups by uid and return how many there were; unknown uids are no error."""
        return self._wait(self.unblocked.delete(uids))

    def update(self, items: Sequence[StorageItem[T]]) -> int:
        """Store changed items under the uid they have, and return how many were still there."""
        return self._wait(self.unblocked.update(items))

    def stats(self) -> Stats:
        """Return what the run holds and what this process has done."""
        return self._wait(self.unblocked.stats())
