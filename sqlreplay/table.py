"""Table: one task seen as a Reverb-style table. Blocking, for any number of threads."""

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlreplay import checks
from sqlreplay.blocking import BlockingReplayBuffer
from sqlreplay.buffer import ReplayBuffer
from sqlreplay.errors import BadArgument, StoreClosed
from sqlreplay.groups import Draft, GroupForm, PutRules
from sqlreplay.limiters import Queue, RateLimiter, Stack
from sqlreplay.measures import GroupNumbers
from sqlreplay.payload import Part
from sqlreplay.policy import Fifo, Lifo, Selector
from sqlreplay.putting import Putting
from sqlreplay.rules import OnFull, TableConfig
from sqlreplay.sampling import Sample, Sampling
from sqlreplay.store import ShutDown, Standing, Stored

__all__ = ["Table", "TableInfo"]

R = TypeVar("R")
UNMEASURED = GroupNumbers([None], None, None, None, 0, 0, None, None, None)


@dataclass(frozen=True)
class TableInfo:
    """A table's settings, what it holds, and what it has seen since it was made."""

    name: str
    config: TableConfig
    size: int
    size_bytes: int
    inserts: int
    samples: int
    deletes: int
    evictions: int


class Table:
    """A task as a table of any plain data, with a sampler, a remover, a capacity and a rate limiter.

        with Table("sqlite:///replay.db", "replay", sampler=Prioritized(0.6), remover=Fifo(), max_size=10_000,
                   max_times_sampled=0) as table:
            table.insert("episode 1", {"tokens": [1, 2, 3]}, priority=0.5)
            for data, info in table.sample(4, timeout=30):
                ...

    `data` is what the codec takes: plain values, arrays and tensors, and groups of the buffer's own items. Settings
    are stored with the task; a process that opens it with others gets `TableConflict`.
    """

    def __init__(
        self,
        buffer_or_url: "ReplayBuffer[Any] | BlockingReplayBuffer[Any] | str | Path",
        name: str,
        sampler: Selector = TableConfig.sampler,
        remover: Selector = TableConfig.remover,
        max_size: int | None = None,
        max_times_sampled: int = 1,
        rate_limiter: RateLimiter = TableConfig.rate_limiter,
        max_bytes: int | None = None,
        on_full: OnFull = "evict",
    ) -> None:
        checks.text("a table's name", name)
        self.name = name
        self.config = TableConfig(sampler, remover, max_size, max_times_sampled, rate_limiter, max_bytes, on_full)
        self._owns_buffer = isinstance(buffer_or_url, (str, Path))
        self._buffer = buffer_of(buffer_or_url)
        form = DataForm(self._buffer.form)
        self._putting: Putting[Any] = Putting(form, self._buffer.run, self._buffer.done)
        self._sampling: Sampling[Any] = Sampling(form, self._buffer.run, self._buffer.done)
        self._form = form
        self._shutdowns: int | None = None
        self._is_shut_down = False
        try:
            self._shutdowns = self._wait(self._open())
        except BaseException:
            self.close()
            raise

    @classmethod
    def queue(cls, buffer_or_url: Any, name: str, max_size: int) -> "Table":
        """Make a table in which each item is sampled once, the oldest first; a full one lets inserts wait."""
        return cls(buffer_or_url, name, Fifo(), Fifo(), max_size, 1, Queue(max_size))

    @classmethod
    def stack(cls, buffer_or_url: Any, name: str, max_size: int) -> "Table":
        """Make a table in which each item is sampled once, the newest first; a full one lets inserts wait."""
        return cls(buffer_or_url, name, Lifo(), Lifo(), max_size, 1, Stack(max_size))

    def __repr__(self) -> str:
        return f"Table({self._buffer!r}, {self.name!r}, {self.config!r})"

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.info.size

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

    async def _open(self) -> int:
        thread = await self._buffer.joined()
        tables = thread.store.tables
        run = self._buffer.run
        await thread.call(lambda: tables.settle_tables(run, {self.name: self.config}))
        return (await self._standing()).shutdowns

    async def _standing(self) -> Standing:
        thread = await self._buffer.joined()
        found = await thread.call(lambda: thread.store.tables.standing(self._buffer.run, self.name))
        assert found is not None  # noqa: S101 - opening the table made it
        return found

    def insert(self, key: str | int, data: Any, priority: float = 1.0, timeout: float | None = None) -> Stored:
        """Store data under a key and return its uid; what has this key already is replaced, at its place.

        Where the table is full or its limiter says so this waits; `timeout` ends that with `PutTimeout`.
        """
        checks.timeout(timeout)
        if not isinstance(key, (str, int)) or isinstance(key, bool):
            raise BadArgument(f"key is {key!r}, expected text or a whole number.")
        checks.text("key", str(key))
        return self._wait(self._insert(str(key), data, checks.priority(priority), timeout))

    async def _insert(self, key: str, data: Any, priority: float, timeout: float | None) -> Stored:
        if self._is_shut_down:
            raise StoreClosed(f"Table {self.name!r} was shut down. Open a new one.")
        thread = await self._buffer.joined()
        rules = PutRules()
        draft = self._form.draft(data, rules)
        new = await self._putting.new_group(draft, self.name, rules, priority=priority, client_key=key)
        try:
            return await self._putting.store(thread, new, timeout, self._is_open, self._shutdowns)
        except StoreClosed:
            self._is_shut_down = self._is_shut_down or self._buffer.is_open()
            raise

    def sample(self, n: int = 1, timeout: float | None = None) -> "list[Sample[Any]] | None":
        """Draw n different items by the sampler; None once the table was shut down.

        Waits until the limiter allows it and so many are there; `timeout` ends that with `SampleTimeout`.
        """
        checks.timeout(timeout)
        return self._wait(self._sample(n, timeout))

    async def _sample(self, n: int, timeout: float | None) -> "list[Sample[Any]] | None":
        if self._is_shut_down:
            return None
        thread = await self._buffer.joined()
        asked = self._sampling.asked(thread, n, self.name, "completed", None, shutdowns=self._shutdowns)
        try:
            return await self._sampling.sample(thread, asked, timeout, self._is_open)
        except ShutDown:
            self._is_shut_down = True
            return None
        except StoreClosed:
            if self._is_shut_down:
                return None
            raise

    def update_priorities(self, priorities: Mapping[int, float]) -> list[int]:
        """Set priorities by uid, and return the uids that are not in the table (any more)."""
        return self._wait(self._buffer.update_priorities(self.name, priorities))

    def can_sample(self, n: int = 1) -> bool:
        """Tell whether the rate limiter would let n items be drawn now."""
        standing = self._wait(self._standing())
        return standing.rules.rate_limiter.sampling_must_wait(standing.counters, n) is None

    def can_insert(self, n: int = 1) -> bool:
        """Tell whether the rate limiter would let n items go in now."""
        standing = self._wait(self._standing())
        return standing.rules.rate_limiter.inserting_must_wait(standing.counters, n) is None

    @property
    def info(self) -> TableInfo:
        """What the table holds and has seen, in all processes."""
        now = self._wait(self._standing())
        return TableInfo(
            self.name, now.rules, now.size, now.size_bytes, now.inserts, now.samples, now.deletes, now.evictions
        )

    @property
    def is_shut_down(self) -> bool:
        return self._is_shut_down

    def shutdown(self) -> None:
        """End every wait on this table: at once in this process, and within half a second in others that have it open.

        From then on `sample` gives None and `insert` raises `StoreClosed`. What is stored stays; a table opened later
        works.
        """
        self._is_shut_down = True
        self._wait(self._shut_down())

    async def _shut_down(self) -> None:
        thread = await self._buffer.joined()
        await thread.call(lambda: thread.store.tables.shut_down(self._buffer.run, self.name))

    def close(self) -> None:
        """Give back the connections of a table that was opened by URL."""
        if self._owns_buffer:
            self._buffer.close_and_wait()

    def _is_open(self) -> bool:
        return not self._is_shut_down and self._buffer.is_open()


def buffer_of(buffer_or_url: "ReplayBuffer[Any] | BlockingReplayBuffer[Any] | str | Path") -> ReplayBuffer[Any]:
    if isinstance(buffer_or_url, (str, Path)):
        return ReplayBuffer(buffer_or_url, item_type=object)
    return buffer_or_url.unblocked if isinstance(buffer_or_url, BlockingReplayBuffer) else buffer_or_url


class DataForm(GroupForm[Any]):
    """Data as it is: nothing in it is a status or a step. Groups of the buffer's own items keep their type."""

    def __init__(self, items: GroupForm[Any]) -> None:
        super().__init__(object, None, "group")
        self._items = items

    def draft(self, originals: Any, rules: PutRules) -> Draft[Any]:
        if self._is_group(originals):
            return self._items.measured(originals, "completed", 0)
        return Draft([originals], [originals], "completed", UNMEASURED, dropped=False)

    def _is_group(self, data: Any) -> bool:
        kind = self._items.item_type
        is_typed = kind not in (object, dict, bytes)
        return is_typed and isinstance(data, list) and bool(data) and all(type(item) is kind for item in data)

    async def encode(self, draft: Draft[Any]) -> list[Part]:
        if self._is_group(draft.items):
            return await self._items.encode(draft)
        return await super().encode(draft)

    def read(self, row: Any, parts: Sequence[Any]) -> Any:
        """Give data back as it came, and a group that `put` stored as a list of items."""
        if parts and self.written_as(row, parts) != "object":
            return self._items.read(row, parts)
        items = self.decoded(row, parts, with_response=True).items
        return items[0] if len(items) == 1 else items
