"""Tables: keys to sample and to evict by, exact sums, a capacity for the run, and the share of solved samples."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# 0001 had these as floats, which nothing wrote yet
FLOATS = {"tasks": ["race_time", "evict_time", "weight_sum"], "groups": ["race_key", "evict_key"]}
INDEXES = [
    ("race", ["task_id", "race_key", "uid"], "race_key IS NOT NULL", False),
    ("evict", ["task_id", "evict_key", "uid"], "evict_key IS NOT NULL", False),
    ("never_drawn", ["task_id", "uid"], "race_key IS NOT NULL AND times_sampled = 0", False),
    ("client_key", ["task_id", "client_key"], "client_key IS NOT NULL", True),
]


def columns() -> dict[str, list[sa.Column[Any]]]:
    json_document = sa.JSON(none_as_null=True)
    if op.get_context().dialect.name == "postgresql":
        json_document = sa.dialects.postgresql.JSONB(none_as_null=True)
    return {
        "runs": [sa.Column("seed", sa.Text), sa.Column("capacity", json_document)],
        "tasks": [
            sa.Column("stream_size", sa.BigInteger, nullable=False, server_default="0"),
            sa.Column("weight_sum", sa.Text, nullable=False, server_default="0"),
            sa.Column("race_time", sa.LargeBinary),
            sa.Column("race_time_behind", sa.LargeBinary),
            sa.Column("evict_time", sa.LargeBinary),
            sa.Column("evict_time_behind", sa.LargeBinary),
            sa.Column("evictions", sa.BigInteger, nullable=False, server_default="0"),
            sa.Column("shutdowns", sa.BigInteger, nullable=False, server_default="0"),
        ],
        "groups": [
            sa.Column("solve_rate", sa.Double),
            sa.Column("race_weight", sa.Double),
            sa.Column("race_key", sa.LargeBinary),
            sa.Column("evict_key", sa.LargeBinary),
        ],
    }


def upgrade() -> None:
    for table, names in FLOATS.items():
        for name in names:
            op.drop_column(f"sqlreplay_{table}", name)
    for table, added in columns().items():
        for column in added:
            op.add_column(f"sqlreplay_{table}", column)
    for name, indexed, where, is_unique in INDEXES:
        op.create_index(
            f"ix_sqlreplay_groups_{name}",
            "sqlreplay_groups",
            indexed,
            unique=is_unique,
            sqlite_where=sa.text(where),
            postgresql_where=sa.text(where),
        )
    if op.get_context().dialect.name == "postgresql":
        # a table's row changes with every put and sample: room on its page keeps that off the indexes
        op.execute("ALTER TABLE sqlreplay_tasks SET (fillfactor = 30, autovacuum_vacuum_threshold = 50)")


def downgrade() -> None:
    # without their keys, tasks are no tables
    op.execute("UPDATE sqlreplay_tasks SET settings = NULL")
    for name, *_ in INDEXES:
        op.drop_index(f"ix_sqlreplay_groups_{name}", "sqlreplay_groups")
    for table, added in columns().items():
        for column in added:
            op.drop_column(f"sqlreplay_{table}", column.name)
    for table, names in FLOATS.items():
        for name in names:
            is_sum = table == "tasks"
            column = sa.Column(name, sa.Double, nullable=not is_sum, server_default="0" if is_sum else None)
            op.add_column(f"sqlreplay_{table}", column)
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE sqlreplay_tasks RESET (fillfactor, autovacuum_vacuum_threshold)")
