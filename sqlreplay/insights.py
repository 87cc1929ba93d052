"""The one reader for people: what is stored, counted in the database, for command line, page and metrics alike."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Stats", "TaskStats", "summarise"]


@dataclass(frozen=True)
class TaskStats:
    """One task: groups by status, and what they hold. `waiting` leaves out what is leased.

    The fields from `size` on are those of a table, and None for a task that is none. They count since it was made, in
    all processes: `removed` is all that left, `evicted` the part of it that gave way to a capacity. `size` and
    `size_bytes` are what a capacity counts, which leaves out archived groups.
    """

    train_step: int | None
    groups: int
    waiting: dict[str, int]
    leased: int
    samples: int
    tokens: int
    bytes: int
    staleness_mean: float
    staleness_max: int
    oldest_at: float | None
    errors: int
    size: int | None = None
    size_bytes: int | None = None
    inserted: int | None = None
    sampled: int | None = None
    removed: int | None = None
    evicted: int | None = None
    max_size: int | None = None
    max_bytes: int | None = None

    @property
    def is_table(self) -> bool:
        return self.size is not None


@dataclass(frozen=True)
class Stats:
    """What a run holds, and what this process has done with it since it opened the buffer.

        stats = await buffer.stats()
        tracker.log(stats.scalars("replay/"), step=step)

    `max_size` and `max_bytes` are the capacity of the run as a whole, where it has one.
    """

    url: str
    run: str
    tasks: dict[str, TaskStats]
    process: dict[str, float] = field(default_factory=dict)
    max_size: int | None = None
    max_bytes: int | None = None

    @property
    def groups(self) -> int:
        """How many groups there are, leased ones included."""
        return sum(task.groups for task in self.tasks.values())

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """Return a flat dict of numbers for any tracker: totals, this process's counters, then task by task."""
        flat: dict[str, float] = {}
        for name in ("groups", "leased", "samples", "tokens", "bytes", "errors"):
            flat[name] = sum(getattr(task, name) for task in self.tasks.values())
        for status in sorted({status for task in self.tasks.values() for status in task.waiting}):
            flat[status] = sum(task.waiting.get(status, 0) for task in self.tasks.values())
        flat |= {name: limit for name in ("max_size", "max_bytes") if (limit := getattr(self, name)) is not None}
        flat |= self.process
        for task_name, task in self.tasks.items():
            for name, value in asdict(task).items():
                if isinstance(value, dict):
                    flat |= {f"{task_name}/{status}": count for status, count in value.items()}
                elif value is not None:
                    flat[f"{task_name}/{name}"] = value
        return {f"{prefix}{name}": float(value) for name, value in flat.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        return {"version": 1, **asdict(self), "groups": self.groups}


def summarise(url: str, run: str, rows: Sequence[Any], process: dict[str, float] | None = None) -> Stats:
    """Fold the store's summary rows into a `Stats`."""
    by_task: dict[str, list[Any]] = {}
    for row in rows:
        by_task.setdefault(row.name, []).append(row)
    tasks = {name: summarise_task(rows_of_task) for name, rows_of_task in by_task.items()}
    capacity = (rows[0].capacity if rows else None) or {}
    return Stats(url, run, tasks, process or {}, capacity.get("max_size"), capacity.get("max_bytes"))


def summarise_task(rows: Sequence[Any]) -> TaskStats:
    held = [row for row in rows if row.groups]
    groups = total(row.groups for row in held)
    return TaskStats(
        train_step=rows[0].train_step,
        groups=groups,
        waiting={row.status: int(row.groups) for row in held if not row.leased},
        leased=total(row.groups for row in held if row.leased),
        samples=total(row.samples for row in held),
        tokens=total(row.tokens for row in held),
        bytes=total(row.bytes for row in held),
        staleness_mean=sum(float(row.staleness_mean) * row.groups for row in held) / groups if groups else 0.0,
        staleness_max=max((int(row.staleness_max) for row in held), default=0),
        oldest_at=min((row.oldest_at for row in held), default=None),
        errors=total(row.errors for row in held),
        **table_numbers(rows[0]),
    )


def table_numbers(row: Any) -> dict[str, int | None]:
    """Return what a task's own row says of it as a table; nothing for a task that is none."""
    if row.settings is None and row.capacity is None:
        return {}
    settings = row.settings or {}
    return {
        "size": row.size,
        "size_bytes": row.size_bytes,
        "inserted": row.inserts,
        "sampled": row.times_drawn,
        "removed": row.deletes,
        "evicted": row.evictions,
        "max_size": settings.get("max_size"),
        "max_bytes": settings.get("max_bytes"),
    }


def total(numbers: Iterable[Any]) -> int:
    return sum(map(int, numbers))
