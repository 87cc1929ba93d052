"""A persistent replay store for LLM reinforcement learning, built on SQL.

async with ReplayBuffer("sqlite:///replay.db", policy="staleness") as buffer:
    await buffer.put(group, "math", model_step=3, current_train_step=5, stale_threshold=4)
    batches, counts = await buffer.take_batch({"math": 64})
"""

from sqlreplay.blocking import BlockingReplayBuffer
from sqlreplay.buffer import ReplayBuffer
from sqlreplay.errors import (
    BadArgument,
    BadUrl,
    InvalidGroup,
    MissingExtra,
    OutcomeUnknown,
    PayloadDamaged,
    PayloadError,
    PayloadUnsupported,
    PutTimeout,
    QueryError,
    RunNotEmpty,
    SampleTimeout,
    SchemaError,
    SchemaMissing,
    SchemaOutdated,
    SchemaTooNew,
    SqlReplayError,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TableConflict,
    TableFull,
    TakeTimeout,
)
from sqlreplay.insights import Stats
from sqlreplay.limiters import MinSize, Queue, SampleToInsertRatio, Stack
from sqlreplay.policy import Fifo, Lifo, MaxHeap, MinHeap, Plan, Policy, Prioritized, Staleness, Uniform
from sqlreplay.presets import AsyncReplayBufferConfig, SyncReplayBufferConfig
from sqlreplay.putting import GroupMeasures
from sqlreplay.query import parse_query
from sqlreplay.records import (
    RolloutFunctionCall,
    RolloutState,
    RolloutToolCall,
    SampleParams,
    Status,
    StorageItem,
    get_group_status,
    maybe_expire_group,
    refresh_seq_staleness,
    reset_rollout_response,
    update_sample_version,
)
from sqlreplay.rules import TableConfig
from sqlreplay.sampling import Sample, SampleInfo
from sqlreplay.store import Stored
from sqlreplay.table import Table, TableInfo

__version__ = "0.1.0"

__all__ = [
    "AsyncReplayBufferConfig",
    "BadArgument",
    "BadUrl",
    "BlockingReplayBuffer",
    "Fifo",
    "GroupMeasures",
    "InvalidGroup",
    "Lifo",
    "MaxHeap",
    "MinHeap",
    "MinSize",
    "MissingExtra",
    "OutcomeUnknown",
    "PayloadDamaged",
    "PayloadError",
    "PayloadUnsupported",
    "Plan",
    "Policy",
    "Prioritized",
    "PutTimeout",
    "QueryError",
    "Queue",
    "ReplayBuffer",
    "RolloutFunctionCall",
    "RolloutState",
    "RolloutToolCall",
    "RunNotEmpty",
    "Sample",
    "SampleInfo",
    "SampleParams",
    "SampleTimeout",
    "SampleToInsertRatio",
    "SchemaError",
    "SchemaMissing",
    "SchemaOutdated",
    "SchemaTooNew",
    "SqlReplayError",
    "Stack",
    "Staleness",
    "Stats",
    "Status",
    "StorageItem",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "Stored",
    "SyncReplayBufferConfig",
    "Table",
    "TableConfig",
    "TableConflict",
    "TableFull",
    "TableInfo",
    "TakeTimeout",
    "Uniform",
    "get_group_status",
    "maybe_expire_group",
    "parse_query",
    "refresh_seq_staleness",
    "reset_rollout_response",
    "update_sample_version",
]
