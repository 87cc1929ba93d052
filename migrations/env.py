"""Run the revisions over the connection that sqlreplay hands in, or print them as SQL without one."""

from typing import Any

from alembic import context

options: dict[str, Any] = {"version_table": "sqlreplay_schema", "transaction_per_migration": False}

if context.is_offline_mode():
    context.configure(dialect_name=context.config.attributes["dialect"], literal_binds=True, **options)
else:
    context.configure(connection=context.config.attributes["connection"], **options)

with context.begin_transaction():
    context.run_migrations()
