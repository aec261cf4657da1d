"""Runs the migrations on the connection that `store.schema` hands over.

On a server each statement commits by itself, as `store.online` needs it; SQLite does all in one transaction.
"""

from alembic import context

from celery_tm.store.grants import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    transactional_ddl=context.config.attributes["connection"].dialect.name == "sqlite",
    version_table=VERSION_TABLE,
    version_table_schema=context.config.attributes["schema"],
)
with context.begin_transaction():
    context.run_migrations()
