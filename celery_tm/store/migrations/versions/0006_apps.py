"""The app that definitions, jobs and dead letters belong to: several apps can share one database."""

from sqlalchemy import Column, String

from celery_tm.store import online

revision = "0006"
down_revision = "0005"

TABLES = ("tm_job", "tm_dead_letter", "tm_definition")
PENDING, TURN = "state = 'pending' AND slot IS NULL", "state = 'pending' AND slot = 'open'"
SEEDED = "origin LIKE 'beat_schedule:%'"
# Definitions that code has seeded say whose they are; one without a name, or of a script, is called `default`.
NAME = "CASE WHEN substr(origin, 15) IN ('', '__main__') THEN 'default' ELSE substr(origin, 15) END"


def upgrade() -> None:
    for table in TABLES:
        online.add_columns(table, Column("app", String(90), nullable=False, server_default=""))
    online.fill("tm_definition", "app", NAME, where=f"{SEEDED} AND app = ''")
    online.add_marks("app:", NAME, table="tm_definition", where=SEEDED)
    # The new indexes first, so that there is always one to claim by.
    plain = ("app", "state", "slot", "run_at")
    online.add_index("tm_job_app_due", "tm_job", "app", "run_at", where=PENDING, plain=plain)
    online.add_index("tm_job_app_turn", "tm_job", "app", "run_at", where=TURN, plain=("slot", "app", "state", "run_at"))
    online.add_index("tm_definition_app_due", "tm_definition", "app", "next_run_at")
    online.add_index("tm_definition_app_name", "tm_definition", "app", "name", unique=True)
    online.drop_index("tm_job_due", "tm_job")
    online.drop_index("tm_job_turn", "tm_job")
    online.drop_index("tm_definition_due", "tm_definition")
    online.drop_unique("tm_definition_name", "tm_definition")


def downgrade() -> None:
    if online.has_column("tm_definition", "app"):
        # The tables before have one definition of a name: those of a second app get another one.
        other = online.named("tm_definition")
        twice = f"EXISTS (SELECT 1 FROM {other} o WHERE o.name = {other}.name AND o.app < {other}.app)"
        online.fill("tm_definition", "name", online.joined("substr(name, 1, 60)", "'@'", "substr(app, 1, 39)"), where=twice)
    online.add_unique("tm_definition_name", "tm_definition", "name")
    online.add_index("tm_definition_due", "tm_definition", "next_run_at")
    online.add_index("tm_job_due", "tm_job", "run_at", where=PENDING, plain=("state", "slot", "run_at"))
    online.add_index("tm_job_turn", "tm_job", "run_at", where=TURN, plain=("slot", "state", "run_at"))
    for name in ("tm_job_app_due", "tm_job_app_turn"):
        online.drop_index(name, "tm_job")
    for name in ("tm_definition_app_due", "tm_definition_app_name"):
        online.drop_index(name, "tm_definition")
    for table in TABLES:
        online.drop_columns(table, "app")
