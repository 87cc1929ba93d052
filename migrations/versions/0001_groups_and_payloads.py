"""Runs, tasks, groups and their payloads."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None

AGELESS = 2**62
identity = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
by_code_point = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
json_document = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "sqlreplay_runs",
        sa.Column("id", identity, nullable=False),
        sa.Column("name", by_code_point, nullable=False),
        sa.Column("uuid", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("generation", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sqlreplay_runs"),
        sa.UniqueConstraint("name", name="uq_sqlreplay_runs_name"),
    )
    op.create_table(
        "sqlreplay_tasks",
        sa.Column("id", identity, nullable=False),
        sa.Column("run_id", identity, nullable=False),
        sa.Column("name", by_code_point, nullable=False),
        sa.Column("train_step", sa.BigInteger),
        sa.Column("race_time", sa.Double, nullable=False, server_default="0"),
        sa.Column("evict_time", sa.Double, nullable=False, server_default="0"),
        sa.Column("draw_number", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("size", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("size_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("weight_sum", sa.Double, nullable=False, server_default="0"),
        sa.Column("inserts", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("samples", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("deletes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("settings", json_document),
        sa.PrimaryKeyConstraint("id", name="pk_sqlreplay_tasks"),
        sa.ForeignKeyConstraint(["run_id"], ["sqlreplay_runs.id"], name="fk_sqlreplay_tasks_run_id"),
        sa.UniqueConstraint("run_id", "name", name="uq_sqlreplay_tasks_run_id_name"),
    )
    op.create_table(
        "sqlreplay_refreshes",
        sa.Column("task_id", identity, nullable=False),
        sa.Column("status", by_code_point, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("task_id", "status", name="pk_sqlreplay_refreshes"),
        sa.ForeignKeyConstraint(["task_id"], ["sqlreplay_tasks.id"], name="fk_sqlreplay_refreshes_task_id"),
    )
    op.create_table(
        "sqlreplay_groups",
        sa.Column("uid", identity, nullable=False),
        sa.Column("task_id", identity, nullable=False),
        sa.Column("status", by_code_point, nullable=False),
        sa.Column("stale_from_step", sa.BigInteger, nullable=False),
        sa.Column("oldest_step", sa.BigInteger),
        sa.Column("latest_step", sa.BigInteger),
        sa.Column("token_fresh_step", sa.BigInteger),
        sa.Column("staleness", sa.BigInteger, nullable=False),
        sa.Column("refresh_number", sa.BigInteger, nullable=False),
        sa.Column("expired_at_step", sa.BigInteger),
        sa.Column("priority", sa.Double, nullable=False),
        sa.Column("race_key", sa.Double),
        sa.Column("evict_key", sa.Double),
        sa.Column("times_sampled", sa.Integer, nullable=False, server_default="0"),
        sa.Column("num_samples", sa.Integer, nullable=False),
        sa.Column("num_tokens", sa.BigInteger, nullable=False),
        sa.Column("reward_mean", sa.Double),
        sa.Column("reward_std", sa.Double),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("client_key", by_code_point),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("lease_id", sa.BigInteger),
        sa.Column("payload_id", sa.BigInteger, nullable=False),
        sa.Column("born_epoch", sa.BigInteger, nullable=False),
        sa.Column("written_epoch", sa.BigInteger, nullable=False),
        sa.Column("meta", json_document),
        sa.Column("error", by_code_point),
        sa.PrimaryKeyConstraint("uid", name="pk_sqlreplay_groups"),
        sa.ForeignKeyConstraint(["task_id"], ["sqlreplay_tasks.id"], name="fk_sqlreplay_groups_task_id"),
        sqlite_autoincrement=True,
    )
    for name, columns, where in (
        ("fifo", ["task_id", "status", "uid", "lease_id"], "lease_id IS NULL"),
        ("staleness", ["task_id", "status", "stale_from_step", "uid"], "lease_id IS NULL"),
        ("leased", ["task_id", "lease_id"], "lease_id IS NOT NULL"),
        ("token_fresh", ["task_id", "status", "token_fresh_step"], "token_fresh_step IS NOT NULL"),
        (
            "unseen_ageless",
            ["task_id", "status", "stale_from_step"],
            f"oldest_step IS NULL AND stale_from_step < {AGELESS}",
        ),
    ):
        op.create_index(
            f"ix_sqlreplay_groups_{name}",
            "sqlreplay_groups",
            columns,
            sqlite_where=sa.text(where),
            postgresql_where=sa.text(where),
        )
    op.create_table(
        "sqlreplay_payloads",
        sa.Column("payload_id", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("part", sa.Integer, nullable=False),
        sa.Column("raw_size", sa.BigInteger, nullable=False),
        sa.Column("checksum", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("payload_id", "part", name="pk_sqlreplay_payloads"),
    )

    if op.get_context().dialect.name == "sqlite":
        # ids are drawn from this counter before the rows are written
        op.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('sqlreplay_groups', 0)")
    else:
        # bodies arrive compressed, and both tables churn like a queue
        op.execute("ALTER TABLE sqlreplay_payloads ALTER COLUMN body SET STORAGE EXTERNAL")
        op.execute(
            "ALTER TABLE sqlreplay_groups SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01,"
            " autovacuum_vacuum_cost_delay = 0)"
        )
        op.execute(
            "ALTER TABLE sqlreplay_payloads SET (autovacuum_vacuum_scale_factor = 0.01,"
            " autovacuum_vacuum_cost_delay = 0, toast.autovacuum_vacuum_scale_factor = 0.01,"
            " toast.autovacuum_vacuum_cost_delay = 0)"
        )


def downgrade() -> None:
    for table in ("payloads", "groups", "refreshes", "tasks", "runs"):
        op.drop_table(f"sqlreplay_{table}")
