"""ReplayBuffer: the facade. Verbs check what they are given, and ask the store on its own thread."""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from enum import Enum
from pathlib import Path
from typing import Any, Generic, Literal

from typing_extensions import TypeVar

from sqlreplay import checks
from sqlreplay.aging import expire_in_part
from sqlreplay.config import SchemaMode, StoreConfig, default_url, parse_url
from sqlreplay.errors import BadArgument, RunNotEmpty, StoreClosed, TakeTimeout
from sqlreplay.groups import GroupForm, PutRules
from sqlreplay.insights import Stats, summarise
from sqlreplay.policy import Policy, policy_named
from sqlreplay.query import compile_query, parse_query
from sqlreplay.records import Expiry, RolloutState, Status, StorageItem, status_value
from sqlreplay.store import FIELDS, GroupColumns, NewGroup, OverBudget, Refresh, Rewrite, StoreThread
from sqlreplay.taking import Taking

__all__ = ["ReplayBuffer"]

T = TypeVar("T", default=RolloutState)


class ReplayBuffer(Generic[T]):
    """A persistent buffer of groups, by task and status. It opens with the first verb.

        async with ReplayBuffer("sqlite:///replay.db", policy="staleness") as buffer:
            await buffer.put(group, "math", model_step=3, current_train_step=5, stale_threshold=4)
            batches, counts = await buffer.take_batch({"math": 64, "code": 32})

    It may be used from any number of event loops and threads, after a fork, and after pickling into another process.
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
        self._arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        if expiry not in ("group", "sample"):
            raise BadArgument(f"expiry={expiry!r} is unknown. Type expiry='group' or expiry='sample'.")
        checks.text("run", run)
        self._config = StoreConfig(
            parse_url(default_url() if url is None else url),
            schema,
            postgres_schema,
            synchronous,
            busy_timeout_s,
            pool_size,
        )
        self._run = run
        self._policy = policy_named(policy)
        self._form: GroupForm[T] = GroupForm(item_type, status_type, expiry)
        self._taking: Taking[T] = Taking(self._form, self._policy, run)
        self._must_be_fresh = fresh
        self._handles: dict[int, tuple[StoreThread]] = {}
        self._closed = False
        self._done: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"ReplayBuffer({str(self._config)!r}, run={self._run!r}, policy={self._policy!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by configuration: the copy opens its own connections, and joins the run as it then is."""
        if self._config.is_memory:
            raise BadArgument(
                "A buffer in memory cannot go to another process. Open it on a file: sqlite:///replay.db."
            )
        return rebuild, (
            {
                **self._arguments,
                "url": self._config.url.render_as_string(hide_password=False),
                "fresh": False,
            },
        )

    async def __aenter__(self) -> "ReplayBuffer[T]":
        try:
            await self._open_run()
        except BaseException:
            await self.close()
            raise
        return self

    async def _open_run(self) -> None:
        thread = await self._joined()
        await thread.call(lambda: thread.store.run(self._run))

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Store what was put, give back the connections. Further verbs raise `StoreClosed`."""
        closing = self._leave()
        if closing is not None:
            await asyncio.wrap_future(closing)

    def close_and_wait(self) -> None:
        """Close from code that has no event loop."""
        closing = self._leave()
        if closing is not None:
            closing.result()

    def _leave(self) -> "Future[None] | None":
        self._closed = True
        handle = self._handles.pop(os.getpid(), None)
        return handle[0].leave() if handle is not None else None

    def joined_thread(self) -> StoreThread:
        """Return the thread that serves this buffer in this process, started if need be.

        Callers that come first at the same time agree through one dict, with no lock that a fork could leave held.
        """
        if self._closed:
            raise StoreClosed(f"{self!r} was closed. Open a new one.")
        held = self._handles.get(os.getpid())
        if held is None:
            mine = (StoreThread.join(self._config),)
            held = self._handles.setdefault(os.getpid(), mine)
            if held is not mine:
                mine[0].leave()
        return held[0]

    async def _joined(self) -> StoreThread:
        """Return the store's thread. A buffer that must be fresh looks once, before anything else."""
        thread = self.joined_thread()
        if self._must_be_fresh:
            if await thread.call(lambda: thread.store.holds_groups(self._run)):
                raise RunNotEmpty(
                    f"Run {self._run!r} in {self._config} already holds groups and fresh=True was asked. "
                    "Choose another run= name, or leave fresh out to go on with it."
                )
            self._must_be_fresh = False
        return thread

    async def put(
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
        """Store one group and return its uid, once it is committed; None for an empty or a dropped group.

        Stamps missing model steps, refreshes staleness and expires by the buffer's rule, on the caller's objects too,
        after the commit. `current_train_step` also raises the task's train step.
        """
        rules = PutRules(
            checks.step("model_step", model_step),
            checks.step("current_train_step", current_train_step),
            checks.threshold("stale_threshold", stale_threshold),
            checks.threshold("token_stale_threshold", token_stale_threshold),
            expired_groups_retryable,
        )
        checks.text("task_name", task_name)
        checks.priority(priority)
        if meta is not None:
            checks.meta(meta)
        self._form.check(items)
        thread = await self._joined()
        if not items:
            return None
        draft = self._form.draft(items, rules)
        if draft.dropped:
            draft.apply()
            self._done["dropped"] += 1
            return None
        parts = await self._form.encode(draft)
        columns = {
            **draft.columns(),
            "priority": float(priority),
            "meta": None if meta is None else dict(meta),
        }
        new = NewGroup(task_name, draft.status, parts, columns, rules.current_train_step)
        uid = await thread.store.commit.join(self._run, new)
        draft.apply()
        self._done["put"] += 1
        return uid

    async def get(
        self, batch_size: int, task_name: str, group_status: Any, *, train_step: int | None = None
    ) -> list[list[T]]:
        """Take and remove up to so many groups of a task and status, in the policy's order."""
        batches, _ = await self.take_batch({task_name: batch_size}, group_status=group_status, train_step=train_step)
        return batches[task_name]

    async def take_batch(
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
        """Take groups of several tasks in one transaction: all of it happens or none. Returns groups and counts.

        Without a timeout this takes what is there. With one it waits until all is there; at the deadline it takes
        what is there, or with `require_full` raises `TakeTimeout` and takes nothing. `max_tokens` ends the batch
        before it would hold more tokens, going through the tasks as they are given. `train_step` is the step that
        will consume the batch; the tasks' own is raised to it.
        """
        checks.timeout(timeout)
        checks.step("train_step", train_step)
        checks.threshold("max_tokens", max_tokens)
        thread = await self._joined()
        claims = self._taking.claims(thread, task_batch_sizes, group_status, where)
        cancelled = False
        try:
            batch = await thread.call(
                lambda: thread.store.claim(
                    self._run,
                    claims,
                    max_tokens=max_tokens,
                    train_step=train_step,
                    timeout=timeout,
                    require_full=require_full,
                    is_wanted=lambda: not cancelled and not self._closed,
                ),
                undo=thread.store.release,
            )
        except asyncio.CancelledError:
            cancelled = True
            raise
        except OverBudget as error:
            raise BadArgument(
                f"Group {error.uid} is next in order and alone has {error.num_tokens} tokens, more than "
                f"max_tokens={max_tokens}. Raise max_tokens, or leave such groups where they are with "
                f"where={{'num_tokens': {{'$lte': {max_tokens}}}}}."
            ) from error
        if not batch.full:
            raise TakeTimeout(await self._shortage(task_batch_sizes, group_status, where, timeout))
        taken = await self._taking.unpack(thread, batch, claims)
        self._done["taken"] += sum(map(len, taken.values()))
        return taken, {task_name: len(groups) for task_name, groups in taken.items()}

    async def _shortage(self, sizes: Mapping[str, int], group_status: Any, where: Any, timeout: float | None) -> str:
        asked = status_value(group_status)
        known = dict.fromkeys([*(status.value for status in Status), asked])
        waiting = await self.count_statuses(list(sizes), list(known))
        lines = [
            f"{name}: asked {size} {asked}, found {waiting[name][asked]}, waiting by status "
            f"{ {status: count for status, count in waiting[name].items() if count} or 'none' }"
            for name, size in sizes.items()
        ]
        hint = " Of these, only what the filter matches counts." if where is not None else ""
        return f"Not all was there after {timeout or 0:g} s, and nothing was taken. {'; '.join(lines)}.{hint}"

    async def count(self, task_name: str, group_status: Any) -> int:
        """Return how many unleased groups of this task have this status."""
        counts = await self.count_statuses([task_name], [group_status])
        return counts[task_name][group_status]

    async def count_statuses(self, task_names: Sequence[str], statuses: Sequence[Any]) -> dict[str, dict[Any, int]]:
        """Return the counts of several tasks and statuses, under the very keys that were given."""
        values = [checks.status(status, self._form.status_type) for status in statuses]
        for name in task_names:
            checks.text("task_name", name)
        thread = await self._joined()
        found = await thread.call(lambda: thread.store.counts(self._run, task_names, values))
        return {
            name: {status: found[name, value] for status, value in zip(statuses, values, strict=True)}
            for name in task_names
        }

    async def is_ready(self, task_batch_sizes: Mapping[str, int], *, group_status: Any = Status.COMPLETED) -> bool:
        """Tell whether every task has as many unleased groups as asked."""
        thread = await self._joined()
        claims = self._taking.claims(thread, task_batch_sizes, group_status, None)
        return await thread.call(lambda: thread.store.is_ready(self._run, claims))

    async def size(self) -> int:
        """Return how many groups the run holds, in any status."""
        thread = await self._joined()
        return await thread.call(lambda: thread.store.size(self._run))

    def __len__(self) -> int:
        return self.joined_thread().wait(self.size())

    def __bool__(self) -> bool:
        """A buffer is always true: asking for its length would ask the database."""
        return True

    async def refresh_staleness(
        self,
        *,
        task_stale_thresholds: Mapping[str, int],
        task_token_stale_thresholds: Mapping[str, int | None] | None = None,
        expired_groups_retryable_by_task: Mapping[str, bool] | None = None,
        current_train_step: int,
        statuses: Sequence[Any] | None = None,
    ) -> dict[str, int]:
        """Set the tasks' train step, expire what is past its threshold, and return how many groups did, by task.

        Costs what expires, not what is stored. Whole groups flip without a byte being read; only those that keep
        fresh members are decoded.
        """
        step = checks.step("current_train_step", current_train_step)
        if step is None:
            raise BadArgument("current_train_step is None, expected the train step to refresh to.")
        token_thresholds = task_token_stale_thresholds or {}
        retryable = expired_groups_retryable_by_task or {}
        names = dict.fromkeys((*task_stale_thresholds, *token_thresholds))
        for name in names:
            checks.text("task_name", name)
            checks.threshold(f"task_stale_thresholds[{name!r}]", task_stale_thresholds.get(name))
            checks.threshold(f"task_token_stale_thresholds[{name!r}]", token_thresholds.get(name))
        looked_at = self._statuses_looked_at(statuses)
        thread = await self._joined()
        done = await thread.call(
            lambda: thread.store.refresh(
                self._run,
                lambda task_id, name: Refresh(
                    task_id,
                    step,
                    task_stale_thresholds.get(name),
                    token_thresholds.get(name),
                    retryable.get(name, True),
                    looked_at,
                    self._form.expiry,
                ),
                names,
            )
        )
        expired = {}
        for name in names:
            plan, result = done[name]
            newly = result.expired + await expire_in_part(thread, self._form, self._run, plan)
            if self._form.expiry == "sample" and "expired" in looked_at and plan.retryable:
                newly = await thread.call(lambda plan=plan: thread.store.expired_now(plan.task_id))  # type: ignore[misc]
            expired[name] = newly + result.dropped
        self._done["expired"] += sum(expired.values())
        return expired

    def _statuses_looked_at(self, statuses: Sequence[Any] | None) -> tuple[str, ...]:
        if statuses is None:
            return ("completed", "aborted") if self._form.expiry == "group" else ("completed", "aborted", "expired")
        return tuple(dict.fromkeys(checks.status(status, self._form.status_type) for status in statuses))

    async def find(
        self,
        where: Any = None,
        *,
        order_by: str | None = None,
        limit: int | None = None,
        after: int | None = None,
    ) -> list[StorageItem[T]]:
        """Read groups without taking them, in the order of a field (`"-priority"` for the largest first).

        Pages go by uid unless `order_by` says otherwise: `after=page[-1].uid` gives the next.
        """
        checks.limit(limit)
        thread = await self._joined()
        columns = GroupColumns(thread.store.backend, joined=True)
        condition = compile_query(parse_query({} if where is None else where, FIELDS), columns)
        name = (order_by or "uid").removeprefix("-")
        options = {
            "order_by": columns.column(name),
            "descending": order_by is not None and order_by.startswith("-"),
            "limit": limit,
            "after": after,
        }
        rows = await thread.call(lambda: thread.store.page(self._run, condition, **options))
        parts = await thread.call(lambda: thread.store.read_parts(rows))
        return [
            StorageItem(
                self._form.read(row, parts[row.payload_id]),
                row.uid,
                row.uid,
                row.task_name,
                self._form.status(row.status),
                int(row.staleness_now),
            )
            for row in rows
            if parts[row.payload_id]
        ]

    async def count_where(self, where: Any) -> int:
        """Return how many groups of the run a query matches, in any status."""
        thread = await self._joined()
        condition = compile_query(parse_query(where, FIELDS), GroupColumns(thread.store.backend, joined=True))
        return await thread.call(lambda: thread.store.count_where(self._run, condition))

    async def delete(self, uids: Sequence[int]) -> int:
        """Delete groups by uid and return how many there were; unknown uids are no error."""
        numbers = [checks.uid(uid) for uid in uids]
        thread = await self._joined()
        return await thread.call(lambda: thread.store.delete(self._run, numbers))

    async def update(self, items: Sequence[StorageItem[T]]) -> int:
        """Store changed items under the uid they have, with the status and staleness of the `StorageItem`, and
        return how many were still there. Uid and place in the order stay."""
        rewrites = [await self._rewrite(item) for item in items]
        thread = await self._joined()
        return len(await thread.call(lambda: thread.store.rewrite(self._run, rewrites)))

    async def _rewrite(self, item: StorageItem[T]) -> Rewrite:
        self._form.check(item.item)
        if not item.item:
            raise BadArgument(f"Group {item.uid} has no items left. Type delete([{item.uid}]) to remove it.")
        status = checks.status(item.status, self._form.status_type)
        draft = self._form.measured(item.item, status, int(item.staleness))
        parts = await self._form.encode(draft)
        return Rewrite(checks.uid(item.uid), status, parts, draft.columns())

    async def stats(self) -> Stats:
        """Return what the run holds and what this process has done: `stats.scalars("replay/")` is a flat dict."""
        thread = await self._joined()
        rows = await thread.call(lambda: thread.store.summary(self._run))
        process = {f"{name}_total": float(self._done[name]) for name in ("put", "taken", "dropped", "expired")}
        process["set_aside_total"] = float(self._taking.set_aside)
        return summarise(str(self._config), self._run, rows, process)


def rebuild(arguments: dict[str, Any]) -> ReplayBuffer[Any]:
    url = arguments.pop("url")
    return ReplayBuffer(url, **arguments)
