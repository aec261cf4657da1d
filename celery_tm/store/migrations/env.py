"""Runs the migrations on the connection that `store.schema` hands over."""

from alembic import context

from celery_tm.store.grants import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    transactional_ddl=context.config.attributes["connection"].dialect.name != "mysql",
    version_table=VERSION_TABLE,
    version_table_schema=context.config.attributes["schema"],
)
with context.begin_transaction():
    context.run_migrations()
