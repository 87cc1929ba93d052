"""Rows in, rows out: the only place that runs SQL. `sqlite.py` and `postgres.py` hold every difference."""

from sqlreplay.store.admission import MustWait, Stored
from sqlreplay.store.claim import Claim, OverBudget
from sqlreplay.store.columns import FIELDS, GroupColumns
from sqlreplay.store.refresh import Refresh
from sqlreplay.store.rows import NewGroup, Rewrite
from sqlreplay.store.sampling import Draw, Drawn, ShutDown
from sqlreplay.store.standing import Standing
from sqlreplay.store.store import Batch, Store
from sqlreplay.store.tables import AGELESS
from sqlreplay.store.thread import StoreThread
from sqlreplay.store.transfer import StoredGroup, StoredRun

__all__ = [
    "AGELESS",
    "FIELDS",
    "Batch",
    "Claim",
    "Draw",
    "Drawn",
    "GroupColumns",
    "MustWait",
    "NewGroup",
    "OverBudget",
    "Refresh",
    "Rewrite",
    "ShutDown",
    "Standing",
    "Store",
    "StoreThread",
    "Stored",
    "StoredGroup",
    "StoredRun",
]
