"""Reading groups without taking them, and storing them changed: what people do by hand."""

from typing import Any, TypeVar

from sqlreplay import checks
from sqlreplay.errors import BadArgument
from sqlreplay.groups import GroupForm
from sqlreplay.query import compile_query, parse_query
from sqlreplay.records import StorageItem
from sqlreplay.store import FIELDS, GroupColumns, Rewrite, StoreThread

__all__ = ["find", "rewrite_of"]

T = TypeVar("T")


async def find(
    thread: StoreThread,
    form: GroupForm[T],
    run: str,
    where: Any,
    order_by: str | None,
    limit: int | None,
    after: int | None,
) -> list[StorageItem[T]]:
    """Read a page of groups; one that was taken between its row and its bytes is left out."""
    columns = GroupColumns(thread.store.backend, joined=True)
    condition = compile_query(parse_query({} if where is None else where, FIELDS), columns)
    name = (order_by or "uid").removeprefix("-")
    options = {
        "order_by": columns.column(name),
        "descending": order_by is not None and order_by.startswith("-"),
        "limit": limit,
        "after": after,
    }
    rows = await thread.call(lambda: thread.store.page(run, condition, **options))
    parts = await thread.call(lambda: thread.store.read_parts(rows))
    return [
        StorageItem(
            form.read(row, parts[row.payload_id]),
            row.uid,
            row.uid,
            row.task_name,
            form.status(row.status),
            int(row.staleness_now),
        )
        for row in rows
        if parts[row.payload_id]
    ]


async def rewrite_of(form: GroupForm[T], item: StorageItem[T]) -> Rewrite:
    """Turn a changed item into what the store takes."""
    form.check(item.item)
    if not item.item:
        raise BadArgument(f"Group {item.uid} has no items left. Type delete([{item.uid}]) to remove it.")
    status = checks.status(item.status, form.status_type)
    draft = form.measured(item.item, status, int(item.staleness))
    parts = await form.encode(draft)
    return Rewrite(checks.uid(item.uid), status, parts, draft.columns())
