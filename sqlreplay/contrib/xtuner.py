"""XTuner's replay buffer on a database, in two ways. XTuner itself is not imported: it is known by its shapes.

`SqlReplayBufferConfig` takes the place of XTuner's own buffer configuration, and is the better choice: what it builds
takes a batch in one transaction, orders by an index and refreshes only what expires.

`SqlStorage` goes under XTuner's own `ReplayBuffer(policy, storage)`. Everything is durable there too, but XTuner takes
a batch in two calls, get and then delete: two processes that take from one run at the same time may get the same
group, and every batch reads all groups that match. One consumer per run is safe.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from sqlreplay import checks
from sqlreplay.buffer import ReplayBuffer
from sqlreplay.config import SchemaMode
from sqlreplay.errors import BadArgument, InvalidGroup, PayloadDamaged, PayloadError
from sqlreplay.groups import as_part
from sqlreplay.presets import BufferConfig
from sqlreplay.records import Expiry, RolloutState, StorageItem
from sqlreplay.store import NewGroup, StoredRun

__all__ = ["SqlReplayBufferConfig", "SqlStorage"]

T = TypeVar("T")
STATE_FORMAT = "sqlreplay.run"
STATE_VERSION = 1


class SqlReplayBufferConfig(BufferConfig):
    """A buffer by configuration, in the shape of XTuner's own.

        config = SqlReplayBufferConfig(url="postgresql://replay@db.example/rl", policy="staleness",
                                       item_type=RolloutState, status_type=Status)
        buffer = config.build()

    With XTuner's `RolloutState` and `Status` it takes and gives those very classes.
    """

    policy: Literal["fifo", "staleness"] = "fifo"
    item_type: type[Any] = RolloutState
    status_type: type[Enum] | None = None

    def build(self) -> ReplayBuffer[Any]:
        """Return a buffer that opens with its first verb."""
        return ReplayBuffer(**self.model_dump(exclude={"schema_mode"}), schema=self.schema_mode)


class VerbatimBuffer(ReplayBuffer[T]):
    """A buffer that stores status and staleness as it is told, and whose whole run can be carried elsewhere."""

    async def put_verbatim(self, item: StorageItem[T]) -> int:
        checks.text("task_name", item.task_name)
        self.form.check(item.item)
        if not item.item:
            raise InvalidGroup("The group is empty, expected at least one item. Leave out the put.")
        status = checks.status(item.status, self.form.status_type)
        draft = self.form.measured(item.item, status, checks.whole_number("staleness", item.staleness))
        parts = await self.form.encode(draft)
        new = NewGroup(item.task_name, status, parts, {**draft.columns(), "priority": 1.0, "meta": None})
        thread = await self.joined()
        return await self._putting.store(thread, new, None, self.is_open)

    async def export_run(self) -> StoredRun:
        thread = await self.joined()
        return await thread.call(lambda: thread.store.export_run(self.run))

    async def import_run(self, stored: StoredRun) -> None:
        thread = await self.joined()
        await thread.call(lambda: thread.store.import_run(self.run, stored))

    def check_stored(self, stored: StoredRun) -> None:
        """Refuse what could not be stored here, and items of another type: those of which no group reads.

        A single group that does not read was so where it came from, and is kept like any other.
        """
        for name in stored.tasks:
            checks.text("task_name", name)
        for group in stored.groups:
            checks.status(group.status, self.form.status_type)
            checks.priority(group.priority)
            if group.meta is not None:
                checks.meta(group.meta)
        problem: PayloadError | None = None
        for group in stored.groups:
            try:
                self.form.codec.decode(map(as_part, group.parts), with_response=group.expired_at_step is None)
                return
            except PayloadError as error:
                problem = problem or error
        if problem is not None:
            raise BadArgument(
                f"No group of the state reads as {self.form.item_type.__name__}: {problem}. "
                "Open the storage with the item_type= that the state was saved with."
            ) from problem


class SqlStorage(Generic[T]):
    """XTuner's `StorageBackend` on a database: it outlives the process, and a restart goes on with what is there.

        storage = SqlStorage("sqlite:///replay.db", item_type=RolloutState, status_type=Status)
        buffer = ReplayBuffer(policy, storage)

    Queries are XTuner's nodes or dicts. Only single calls are atomic here: where several processes take from one run,
    use `SqlReplayBufferConfig`, whose buffer takes in one transaction. `storage_item_type` is what `get` returns,
    built from the fields of `StorageItem` by name.
    """

    def __init__(
        self,
        url: str | Path | None = None,
        *,
        run: str = "default",
        item_type: type[T] = RolloutState,  # type: ignore[assignment]
        status_type: type[Enum] | None = None,
        storage_item_type: Callable[..., Any] = StorageItem,
        expiry: Expiry = "group",
        fresh: bool = False,
        schema: SchemaMode = "upgrade",
        postgres_schema: str | None = None,
        synchronous: Literal["normal", "full"] = "normal",
        busy_timeout_s: float = 60.0,
        pool_size: int = 5,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "storage_item_type")}
        self._buffer: VerbatimBuffer[T] = VerbatimBuffer(**arguments)
        self._given = tuple(arguments)
        self._storage_item_type = storage_item_type

    def __repr__(self) -> str:
        return f"SqlStorage({self._buffer!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by configuration: the copy opens its own connections, and joins the run as it then is."""
        _, (arguments,) = self._buffer.__reduce__()
        given = {name: arguments[name] for name in self._given}
        return rebuild, ({**given, "storage_item_type": self._storage_item_type},)

    async def __aenter__(self) -> "SqlStorage[T]":
        await self._buffer.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give back the connections."""
        await self._buffer.close()

    def close_and_wait(self) -> None:
        """Close from code that has no event loop."""
        self._buffer.close_and_wait()

    async def put(self, item: StorageItem[T]) -> int:
        """Store a group under its task with the status and staleness it has, and return its uid once committed.

        The uid and timestamp in `item` mean nothing here: the database gives both.
        """
        return await self._buffer.put_verbatim(item)

    async def get(self, query: Any) -> list[Any]:
        """Return all groups that match, in the order they were put, and leave them where they are."""
        found = await self._buffer.find(query)
        if self._storage_item_type is StorageItem:
            return list(found)
        return [self._storage_item_type(**vars(item)) for item in found]

    async def count(self, query: Any) -> int:
        """Return how many groups match."""
        return await self._buffer.count_where({} if query is None else query)

    async def delete(self, uids: Sequence[int]) -> None:
        """Delete groups; unknown uids are ignored."""
        await self._buffer.delete(uids)

    async def update(self, items: Sequence[StorageItem[T]]) -> None:
        """Store changed items, status and staleness under the uids they have; unknown uids are ignored.

        Uid and place in the order stay. It is one transaction: all of it happens or none.
        """
        await self._buffer.update(items)

    def __len__(self) -> int:
        return len(self._buffer)

    def __bool__(self) -> bool:
        """A storage is always true: `storage or other` must not pass over one that is empty."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the whole run as it is at one moment, as plain data and bytes for any serializer.

        The database keeps everything anyway: this is for carrying a run to another one, of either kind.
        """
        stored = self._buffer.joined_thread().wait(self._buffer.export_run())
        content = msgspec.to_builtins(stored, builtin_types=(bytes,))
        return {"format": STATE_FORMAT, "version": STATE_VERSION, "checksum": checksum(content), **content}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring the groups of a `state_dict` into this run, which must be empty, with the uids they had.

        All is checked first and written in one transaction. New groups get larger uids than all that were loaded.
        """
        stored = read_state(state)
        self._buffer.check_stored(stored)
        self._buffer.joined_thread().wait(self._buffer.import_run(stored))


def read_state(state: Any) -> StoredRun:
    """Check that a state is whole and of a version that this library reads."""
    if not isinstance(state, Mapping) or state.get("format") != STATE_FORMAT:
        raise BadArgument(
            f"The state is {type(state).__name__} without format={STATE_FORMAT!r}: SqlStorage.state_dict() did not "
            "make it. A buffer that was saved with another storage has to be loaded with that one."
        )
    if state.get("version") != STATE_VERSION:
        raise BadArgument(
            f"The state has version {state.get('version')!r}, this library reads {STATE_VERSION}. "
            "Type: pip install --upgrade sqlreplay"
        )
    content = {name: value for name, value in state.items() if name not in ("format", "version", "checksum")}
    try:
        stored = msgspec.convert(content, StoredRun, builtin_types=(bytes,))
        found = checksum(content)
    except (msgspec.MsgspecError, TypeError, OverflowError) as error:
        raise PayloadDamaged(f"The state is damaged: {error}. Load another copy of it.") from error
    if len({group.uid for group in stored.groups}) < len(stored.groups):
        raise PayloadDamaged("The state is damaged: it has two groups with one uid. Load another copy.")
    if not {group.task_name for group in stored.groups} <= stored.tasks.keys():
        raise PayloadDamaged("The state is damaged: it has groups of a task that it does not list. Load another copy.")
    if found != state.get("checksum"):
        raise PayloadDamaged(
            f"The state is damaged: its checksum is {found}, expected {state.get('checksum')!r}. Load another copy."
        )
    return stored


def checksum(content: Mapping[str, Any]) -> int:
    """Return the CRC-32 of tasks and groups, one group at a time, so that no second copy of the bytes is made.

    Names are sorted, because a database may give the members of meta back in an order of its own.
    """
    encoder = msgspec.msgpack.Encoder(order="deterministic")
    found = zlib.crc32(encoder.encode(content["tasks"]))
    for group in content["groups"]:
        found = zlib.crc32(encoder.encode(group), found)
    return found


def rebuild(arguments: dict[str, Any]) -> SqlStorage[Any]:
    return SqlStorage(**arguments)
