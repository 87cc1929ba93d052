"""Rows in, rows out: the only place that runs SQL. `sqlite.py` and `postgres.py` hold every difference."""

from sqlreplay.store.claim import Claim, OverBudget
from sqlreplay.store.columns import FIELDS, GroupColumns
from sqlreplay.store.meta import check_meta, text_problem
from sqlreplay.store.refresh import Refresh
from sqlreplay.store.rows import NewGroup, Rewrite
from sqlreplay.store.store import Batch, Store
from sqlreplay.store.tables import AGELESS
from sqlreplay.store.thread import StoreThread

__all__ = [
    "AGELESS",
    "FIELDS",
    "Batch",
    "Claim",
    "GroupColumns",
    "NewGroup",
    "OverBudget",
    "Refresh",
    "Rewrite",
    "Store",
    "StoreThread",
    "check_meta",
    "text_problem",
]
