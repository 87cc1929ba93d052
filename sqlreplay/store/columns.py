"""The columns that policies order by and queries ask for."""

from typing import Any

from sqlalchemy import ColumnElement, String, func, select

from sqlreplay.errors import BadArgument
from sqlreplay.store.backend import Backend, MetaKind
from sqlreplay.store.tables import groups, refreshes, tasks

__all__ = ["FIELDS", "GroupColumns", "as_of_step", "staleness"]

as_of_step: ColumnElement[int | None] = (
    select(refreshes.c.step)
    .where(
        refreshes.c.task_id == groups.c.task_id,
        refreshes.c.status == groups.c.status,
        refreshes.c.number > groups.c.refresh_number,
        groups.c.oldest_step.is_not(None),
        groups.c.status != "expired",
    )
    .correlate(groups)
    .scalar_subquery()
)
"""The train step of the last refresh that looked at the row; NULL where none has since it was written."""

staleness: ColumnElement[int] = func.coalesce(as_of_step - groups.c.stale_from_step, groups.c.staleness)
"""How far the row lies behind: as of the last refresh that looked at it, else as it was written."""

task_name: ColumnElement[str] = (
    select(tasks.c.name).where(tasks.c.id == groups.c.task_id).correlate(groups).scalar_subquery()
)

PLAIN = (
    "uid",
    "status",
    "stale_from_step",
    "oldest_step",
    "token_fresh_step",
    "priority",
    "times_sampled",
    "num_samples",
    "num_tokens",
    "reward_mean",
    "reward_std",
    "solve_rate",
    "size_bytes",
    "client_key",
    "created_at",
    "error",
)
EXPRESSIONS: dict[str, ColumnElement[Any]] = {
    **{name: groups.c[name] for name in PLAIN},
    "timestamp_id": groups.c.uid,
    "task_name": task_name,
    "staleness": staleness,
}
FIELDS: dict[str, MetaKind] = {
    name: "text" if isinstance(expression.type, String) else "number" for name, expression in EXPRESSIONS.items()
}
"""What a query may ask for, beside `meta.<name>`, and of which kind it is."""


class GroupColumns:
    """What a policy's `plan` gets: every field of a group as an SQL expression, by attribute.

        columns.num_tokens.asc()
        columns.meta("difficulty", "number").desc()

    With `joined`, `task_name` is the column of a joined tasks table, through which an index finds a task's groups.
    """

    def __init__(self, backend: Backend, *, joined: bool = False) -> None:
        self._backend = backend
        self._expressions = {**EXPRESSIONS, "task_name": tasks.c.name} if joined else EXPRESSIONS

    def __getattr__(self, name: str) -> ColumnElement[Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.column(name)

    def column(self, name: str) -> ColumnElement[Any]:
        """Return a field by name."""
        if name not in self._expressions:
            raise BadArgument(f"{name!r} is not a column of a group. There are: {', '.join(sorted(FIELDS))}.")
        return self._expressions[name]

    def nullable(self, name: str) -> bool:
        """Tell whether a field may be missing."""
        return bool(getattr(self.column(name), "nullable", False))

    def meta(self, name: str, kind: MetaKind) -> ColumnElement[Any]:
        """Return a member of meta where it is of that kind, and NULL elsewhere."""
        return self._backend.meta(groups.c.meta, name, kind)
