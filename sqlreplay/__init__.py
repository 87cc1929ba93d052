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
    QueryError,
    RunNotEmpty,
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
    TakeTimeout,
)
from sqlreplay.insights import Stats
from sqlreplay.policy import Fifo, Lifo, Plan, Policy, Staleness
from sqlreplay.presets import AsyncReplayBufferConfig, SyncReplayBufferConfig
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

__version__ = "0.1.0"

__all__ = [
    "AsyncReplayBufferConfig",
    "BadArgument",
    "BadUrl",
    "BlockingReplayBuffer",
    "Fifo",
    "InvalidGroup",
    "Lifo",
    "MissingExtra",
    "OutcomeUnknown",
    "PayloadDamaged",
    "PayloadError",
    "PayloadUnsupported",
    "Plan",
    "Policy",
    "QueryError",
    "ReplayBuffer",
    "RolloutFunctionCall",
    "RolloutState",
    "RolloutToolCall",
    "RunNotEmpty",
    "SampleParams",
    "SchemaError",
    "SchemaMissing",
    "SchemaOutdated",
    "SchemaTooNew",
    "SqlReplayError",
    "Staleness",
    "Stats",
    "Status",
    "StorageItem",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "SyncReplayBufferConfig",
    "TakeTimeout",
    "get_group_status",
    "maybe_expire_group",
    "parse_query",
    "refresh_seq_staleness",
    "reset_rollout_response",
    "update_sample_version",
]
