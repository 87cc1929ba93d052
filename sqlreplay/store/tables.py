"""The tables as they are today. Only migrations create them; a test holds the two together.

`groups` has what is searched and `payloads` has the bytes, so that no count, refresh or claim reads a byte page.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import JSON

__all__ = ["AGELESS", "groups", "metadata", "payloads", "refreshes", "runs", "tasks"]

AGELESS = 2**62
"""`stale_from_step` of a group that does not age: it sorts after every group that does."""

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

json_document = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
by_code_point = Text().with_variant(Text(collation="C"), "postgresql")
identity = BigInteger().with_variant(Integer(), "sqlite")

runs = Table(
    "sqlreplay_runs",
    metadata,
    Column("id", identity, primary_key=True),
    Column("name", by_code_point, nullable=False),
    Column("uuid", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False, server_default="0"),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    Column("created_at", Double, nullable=False),
    Column("seed", Text),
    Column("capacity", json_document),
    UniqueConstraint("name"),
)

tasks = Table(
    "sqlreplay_tasks",
    metadata,
    Column("id", identity, primary_key=True),
    Column("run_id", ForeignKey(runs.c.id), nullable=False),
    Column("name", by_code_point, nullable=False),
    Column("train_step", BigInteger),
    Column("draw_number", BigInteger, nullable=False, server_default="0"),
    Column("size", BigInteger, nullable=False, server_default="0"),
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),
    Column("inserts", BigInteger, nullable=False, server_default="0"),
    Column("samples", BigInteger, nullable=False, server_default="0"),
    Column("deletes", BigInteger, nullable=False, server_default="0"),
    Column("settings", json_document),
    Column("stream_size", BigInteger, nullable=False, server_default="0"),
    Column("weight_sum", Text, nullable=False, server_default="0"),
    Column("race_time", LargeBinary),
    Column("race_time_behind", LargeBinary),
    Column("evict_time", LargeBinary),
    Column("evict_time_behind", LargeBinary),
    Column("evictions", BigInteger, nullable=False, server_default="0"),
    Column("shutdowns", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("run_id", "name"),
)

refreshes = Table(
    "sqlreplay_refreshes",
    metadata,
    Column("task_id", ForeignKey(tasks.c.id), primary_key=True),
    Column("status", by_code_point, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("step", BigInteger, nullable=False),
)
"""The last staleness refresh of each task and status. A row of `groups` whose `refresh_number` is smaller was
looked at by it, without having been touched."""

groups = Table(
    "sqlreplay_groups",
    metadata,
    Column("uid", identity, primary_key=True),
    Column("task_id", ForeignKey(tasks.c.id), nullable=False),
    Column("status", by_code_point, nullable=False),
    Column("stale_from_step", BigInteger, nullable=False),
    Column("oldest_step", BigInteger),
    Column("latest_step", BigInteger),
    Column("token_fresh_step", BigInteger),
    Column("staleness", BigInteger, nullable=False),
    Column("refresh_number", BigInteger, nullable=False),
    Column("expired_at_step", BigInteger),
    Column("priority", Double, nullable=False),
    Column("times_sampled", Integer, nullable=False, server_default="0"),
    Column("num_samples", Integer, nullable=False),
    Column("num_tokens", BigInteger, nullable=False),
    Column("reward_mean", Double),
    Column("reward_std", Double),
    Column("size_bytes", BigInteger, nullable=False),
    Column("client_key", by_code_point),
    Column("created_at", Double, nullable=False),
    Column("lease_id", BigInteger),
    Column("payload_id", BigInteger, nullable=False),
    Column("born_epoch", BigInteger, nullable=False),
    Column("written_epoch", BigInteger, nullable=False),
    Column("meta", json_document),
    Column("error", by_code_point),
    Column("solve_rate", Double),
    Column("race_weight", Double),
    Column("race_key", LargeBinary),
    Column("evict_key", LargeBinary),
    sqlite_autoincrement=True,
)

# lease_id is last in the index so that SQLite counts without touching the table
waiting = groups.c.lease_id.is_(None)
Index(
    "ix_sqlreplay_groups_fifo",
    groups.c.task_id,
    groups.c.status,
    groups.c.uid,
    groups.c.lease_id,
    sqlite_where=waiting,
    postgresql_where=waiting,
)
Index(
    "ix_sqlreplay_groups_staleness",
    groups.c.task_id,
    groups.c.status,
    groups.c.stale_from_step,
    groups.c.uid,
    sqlite_where=waiting,
    postgresql_where=waiting,
)
leased = groups.c.lease_id.is_not(None)
Index(
    "ix_sqlreplay_groups_leased",
    groups.c.task_id,
    groups.c.lease_id,
    sqlite_where=leased,
    postgresql_where=leased,
)
has_fresh_step = groups.c.token_fresh_step.is_not(None)
Index(
    "ix_sqlreplay_groups_token_fresh",
    groups.c.task_id,
    groups.c.status,
    groups.c.token_fresh_step,
    sqlite_where=has_fresh_step,
    postgresql_where=has_fresh_step,
)
unseen_ageless = groups.c.oldest_step.is_(None) & (groups.c.stale_from_step < text(str(AGELESS)))
Index(
    "ix_sqlreplay_groups_unseen_ageless",
    groups.c.task_id,
    groups.c.status,
    groups.c.stale_from_step,
    sqlite_where=unseen_ageless,
    postgresql_where=unseen_ageless,
)

# these hold only rows of tasks that are tables: nobody else pays for them
in_stream = groups.c.race_key.is_not(None)
Index(
    "ix_sqlreplay_groups_race",
    groups.c.task_id,
    groups.c.race_key,
    groups.c.uid,
    sqlite_where=in_stream,
    postgresql_where=in_stream,
)
can_be_evicted = groups.c.evict_key.is_not(None)
Index(
    "ix_sqlreplay_groups_evict",
    groups.c.task_id,
    groups.c.evict_key,
    groups.c.uid,
    sqlite_where=can_be_evicted,
    postgresql_where=can_be_evicted,
)
never_drawn = groups.c.race_key.is_not(None) & (groups.c.times_sampled == text("0"))
Index(
    "ix_sqlreplay_groups_never_drawn",
    groups.c.task_id,
    groups.c.uid,
    sqlite_where=never_drawn,
    postgresql_where=never_drawn,
)
has_key = groups.c.client_key.is_not(None)
Index(
    "ix_sqlreplay_groups_client_key",
    groups.c.task_id,
    groups.c.client_key,
    unique=True,
    sqlite_where=has_key,
    postgresql_where=has_key,
)

payloads = Table(
    "sqlreplay_payloads",
    metadata,
    Column("payload_id", BigInteger, primary_key=True, autoincrement=False),
    Column("part", Integer, primary_key=True),
    Column("raw_size", BigInteger, nullable=False),
    Column("checksum", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
