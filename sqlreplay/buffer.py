"""ReplayBuffer: the facade. Verbs check what they are given, and ask the store on its own thread."""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Generic, Literal

from typing_extensions import TypeVar

from sqlreplay import checks
from sqlreplay.aging import refresh
from sqlreplay.config import SchemaMode, StoreConfig, default_url, parse_url
from sqlreplay.errors import BadArgument, RunNotEmpty, TakeTimeout
from sqlreplay.groups import GroupForm, PutRules
from sqlreplay.handle import StoreHandle
from sqlreplay.insights import Stats, summarise
from sqlreplay.mending import find, rewrite_of
from sqlreplay.policy import Policy, policy_named
from sqlreplay.putting import Priority, Putting
from sqlreplay.query import compile_query, parse_query
from sqlreplay.records import Expiry, RolloutState, Status, StorageItem
from sqlreplay.rules import Capacity, OnFull, TableConfig
from sqlreplay.sampling import Sample, Sampling
from sqlreplay.store import FIELDS, GroupColumns, Refresh, Stored, StoreThread
from sqlreplay.taking import Taking, shortage

__all__ = ["ReplayBuffer"]

T = TypeVar("T", default=RolloutState)
COUNTED = ("put", "taken", "sampled", "dropped", "expired", "evicted", "set_aside")


class ReplayBuffer(StoreHandle, Generic[T]):
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
        self._arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        if expiry not in ("group", "sample"):
            raise BadArgument(f"expiry={expiry!r} is unknown. Type expiry='group' or expiry='sample'.")
        checks.text("run", run)
        located = parse_url(default_url() if url is None else url)
        super().__init__(StoreConfig(located, schema, postgres_schema, synchronous, busy_timeout_s, pool_size))
        self.run = run
        self._policy = policy_named(policy)
        self.done: Counter[str] = Counter()
        self.form: GroupForm[T] = GroupForm(item_type, status_type, expiry)
        self._taking: Taking[T] = Taking(self.form, self._policy, run, self.done)
        self._putting: Putting[T] = Putting(self.form, run, self.done)
        self._sampling: Sampling[T] = Sampling(self.form, run, self.done)
        self._tables = checks.tables(tables or {})
        self._capacity = Capacity(max_size, max_bytes, on_full)
        self._seed = None if seed is None else checks.whole_number("seed", seed)
        self._must_settle = bool(tables) or self._capacity.is_limited or seed is not None
        self._must_be_fresh = fresh

    def __repr__(self) -> str:
        return f"ReplayBuffer({str(self._config)!r}, run={self.run!r}, policy={self._policy!r})"

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
        thread = await self.joined()
        await thread.call(lambda: thread.store.run(self.run))

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def joined(self) -> StoreThread:
        """Return the store's thread. A buffer that must be fresh, or has tables, looks once, before anything else."""
        thread = self.joined_thread()
        if self._must_be_fresh:
            if await thread.call(lambda: thread.store.holds_groups(self.run)):
                raise RunNotEmpty(
                    f"Run {self.run!r} in {self._config} already holds groups and fresh=True was asked. "
                    "Choose another run= name, or leave fresh out to go on with it."
                )
            self._must_be_fresh = False
        if self._must_settle:
            await thread.call(
                lambda: thread.store.tables.settle_tables(self.run, self._tables, self._capacity, self._seed)
            )
            self._must_settle = False
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
        priority: Priority = 1.0,
        numbers: Mapping[str, float] | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Stored | None:
        """Store one group and return its uid, once it is committed; None for an empty or a dropped group.

        Stamps missing model steps, refreshes staleness and expires by the buffer's rule, on the caller's objects too,
        after the commit. `current_train_step` also raises the task's train step. `priority` is a number, the name of
        a measure such as "reward_std", or a function of `GroupMeasures`; `numbers` replaces measures that the items
        do not show.

        Into a full table with `on_full="block"`, or past its rate limiter, a put waits; `timeout` ends that with
        `PutTimeout`. Groups that gave way are in the `evicted` of what is returned.
        """
        rules = PutRules(
            checks.step("model_step", model_step),
            checks.step("current_train_step", current_train_step),
            checks.threshold("stale_threshold", stale_threshold),
            checks.threshold("token_stale_threshold", token_stale_threshold),
            expired_groups_retryable,
        )
        checks.text("task_name", task_name)
        checks.timeout(timeout)
        if meta is not None:
            checks.meta(meta)
        self.form.check(items)
        thread = await self.joined()
        if not items:
            return None
        draft = self.form.draft(items, rules)
        if draft.dropped:
            draft.apply()
            self.done["dropped"] += 1
            return None
        new = await self._putting.new_group(draft, task_name, rules, priority=priority, numbers=numbers, meta=meta)
        stored = await self._putting.store(thread, new, timeout, self.is_open)
        draft.apply()
        return stored

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
        thread = await self.joined()
        claims = self._taking.claims(thread, task_batch_sizes, group_status, where)
        taken = await self._taking.take(
            thread,
            claims,
            max_tokens=max_tokens,
            train_step=train_step,
            timeout=timeout,
            require_full=require_full,
            is_open=self.is_open,
        )
        if taken is None:
            waiting = await self.count_statuses(list(task_batch_sizes), [*Status, group_status])
            raise TakeTimeout(shortage(task_batch_sizes, waiting, group_status, timeout, filtered=where is not None))
        self.done["taken"] += sum(map(len, taken.values()))
        return taken, {task_name: len(groups) for task_name, groups in taken.items()}

    async def sample(
        self,
        n: int,
        task_name: str,
        *,
        group_status: Any = Status.COMPLETED,
        where: Any = None,
        timeout: float | None = None,
    ) -> list[Sample[list[T]]]:
        """Draw n different groups by the table's sampler. They stay, until they were drawn `max_times_sampled` times.

        Waits until the rate limiter allows it and n can be drawn; a timeout ends that with `SampleTimeout`, which says
        what it waited for. With `where` or another status the draw is as exact, and costs what matches. A task that
        is no table is drawn evenly, from all it holds.
        """
        checks.timeout(timeout)
        thread = await self.joined()
        asked = self._sampling.asked(thread, n, task_name, group_status, where)
        return await self._sampling.sample(thread, asked, timeout, self.is_open)

    async def sample_mixed(
        self,
        n: int,
        task_name: str,
        *,
        fresh_ratio: float = 0.5,
        where: Any = None,
        timeout: float | None = None,
    ) -> list[Sample[list[T]]]:
        """Draw n different groups in one transaction: the oldest that were never drawn, then replay by the sampler.

        `fresh_ratio` is the share of the first kind, for which this waits; the rest is drawn from all others. The
        task must be a table.
        """
        checks.timeout(timeout)
        thread = await self.joined()
        asked = self._sampling.asked(thread, n, task_name, Status.COMPLETED, where, fresh_ratio=fresh_ratio)
        return await self._sampling.sample(thread, asked, timeout, self.is_open)

    async def update_priorities(self, task_name: str, priorities: Mapping[int, float]) -> list[int]:
        """Set priorities by uid in one transaction, and return the uids that the task does not hold (any more)."""
        checks.text("task_name", task_name)
        checked = checks.priorities(priorities)
        thread = await self.joined()
        return await thread.call(lambda: thread.store.tables.update_priorities(self.run, task_name, checked))

    async def set_table(self, task_name: str, config: TableConfig) -> None:
        """Give a table other settings, for every process; its groups get new keys, which costs what it holds."""
        tables = checks.tables({task_name: config})
        thread = await self.joined()
        await thread.call(lambda: thread.store.tables.set_tables(self.run, tables))
        self._tables |= tables
        self._arguments["tables"] = dict(self._tables)

    async def set_capacity(
        self, *, max_size: int | None = None, max_bytes: int | None = None, on_full: OnFull = "evict"
    ) -> None:
        """Give the run as a whole another capacity, for every process; without arguments it has none."""
        capacity = Capacity(max_size, max_bytes, on_full)
        thread = await self.joined()
        await thread.call(lambda: thread.store.tables.set_tables(self.run, {}, capacity))
        self._capacity = capacity
        self._arguments |= {"max_size": max_size, "max_bytes": max_bytes, "on_full": on_full}

    async def count(self, task_name: str, group_status: Any) -> int:
        """Return how many unleased groups of this task have this status."""
        counts = await self.count_statuses([task_name], [group_status])
        return counts[task_name][group_status]

    async def count_statuses(self, task_names: Sequence[str], statuses: Sequence[Any]) -> dict[str, dict[Any, int]]:
        """Return the counts of several tasks and statuses, under the very keys that were given."""
        values = [checks.status(status, self.form.status_type) for status in statuses]
        for name in task_names:
            checks.text("task_name", name)
        thread = await self.joined()
        found = await thread.call(lambda: thread.store.counts(self.run, task_names, values))
        return {
            name: {status: found[name, value] for status, value in zip(statuses, values, strict=True)}
            for name in task_names
        }

    async def is_ready(self, task_batch_sizes: Mapping[str, int], *, group_status: Any = Status.COMPLETED) -> bool:
        """Tell whether every task has as many unleased groups as asked."""
        thread = await self.joined()
        claims = self._taking.claims(thread, task_batch_sizes, group_status, None)
        return await thread.call(lambda: thread.store.is_ready(self.run, claims))

    async def size(self) -> int:
        """Return how many groups the run holds, in any status."""
        thread = await self.joined()
        return await thread.call(lambda: thread.store.size(self.run))

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
        thread = await self.joined()

        def plan_for(task_id: int, name: str) -> Refresh:
            return Refresh(
                task_id,
                step,
                task_stale_thresholds.get(name),
                token_thresholds.get(name),
                retryable.get(name, True),
                looked_at,
                self.form.expiry,
            )

        expired = await refresh(thread, self.form, self.run, names, plan_for)
        self.done["expired"] += sum(expired.values())
        return expired

    def _statuses_looked_at(self, statuses: Sequence[Any] | None) -> tuple[str, ...]:
        if statuses is None:
            return ("completed", "aborted") if self.form.expiry == "group" else ("completed", "aborted", "expired")
        return tuple(dict.fromkeys(checks.status(status, self.form.status_type) for status in statuses))

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
        thread = await self.joined()
        return await find(thread, self.form, self.run, where, order_by, limit, after)

    async def count_where(self, where: Any) -> int:
        """Return how many groups of the run a query matches, in any status."""
        thread = await self.joined()
        condition = compile_query(parse_query(where, FIELDS), GroupColumns(thread.store.backend, joined=True))
        return await thread.call(lambda: thread.store.count_where(self.run, condition))

    async def delete(self, uids: Sequence[int]) -> int:
        """Delete groups by uid and return how many there were; unknown uids are no error."""
        numbers = [checks.uid(uid) for uid in uids]
        thread = await self.joined()
        return await thread.call(lambda: thread.store.delete(self.run, numbers))

    async def update(self, items: Sequence[StorageItem[T]]) -> int:
        """Store changed items under the uid they have, with the status and staleness of the `StorageItem`, and
        return how many were still there. Uid and place in the order stay."""
        rewrites = [await rewrite_of(self.form, item) for item in items]
        thread = await self.joined()
        return len(await thread.call(lambda: thread.store.rewrite(self.run, rewrites)))

    async def stats(self) -> Stats:
        """Return what the run holds and what this process has done: `stats.scalars("replay/")` is a flat dict."""
        thread = await self.joined()
        rows = await thread.call(lambda: thread.store.summary(self.run))
        process = {f"{name}_total": float(self.done[name]) for name in COUNTED}
        return summarise(str(self._config), self.run, rows, process)


def rebuild(arguments: dict[str, Any]) -> ReplayBuffer[Any]:
    url = arguments.pop("url")
    return ReplayBuffer(url, **arguments)
