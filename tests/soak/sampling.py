"""What is looked at while a soak runs: processes, the database, the broker and the folder for temporary files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import redis
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine, make_url

from celery_tm.store.dialects import with_driver

MB = 1024 * 1024
Sample = dict[str, float]

_SIZES = {
    "postgresql": """
        SELECT s.relname AS name, n_live_tup AS live, n_dead_tup AS dead, pg_table_size(s.relid) AS size,
        pg_indexes_size(s.relid) AS indexes FROM pg_stat_user_tables s WHERE s.relname LIKE 'tm!_%' ESCAPE '!'""",
    "mysql": """
        SELECT table_name AS name, table_rows AS live, 0 AS dead, data_length AS size, index_length AS indexes
        FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'tm!_%' ESCAPE '!'""",
}
_CONNECTIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE()",
}


def of_process(pid: int) -> Sample:
    """Return the memory, file handles and threads of a process and all its children; nothing if it is gone."""
    total: Sample = {}
    for one in [pid, *(children(pid) if pid != os.getpid() else ())]:
        with suppress(OSError, StopIteration):  # it ended while we looked
            root = Path(f"/proc/{one}")
            held = {
                "memory": _kilobytes((root / "smaps_rollup").read_text(), "Pss:") / 1024,
                "handles": float(len(os.listdir(root / "fd"))),
                "threads": float(_kilobytes((root / "status").read_text(), "Threads:")),
            }
            for name, value in held.items():
                total[name] = total.get(name, 0) + value
    return total


def children(pid: int) -> list[int]:
    """Return the children of a process, and theirs."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *children(int(child))]
    return found


def _kilobytes(told: str, name: str) -> int:
    return int(next(line for line in told.splitlines() if line.startswith(name)).split()[1])


class Watch:
    """Looks at a database, a broker and a folder."""

    def __init__(self, database_url: str, broker_url: str, folder: Path) -> None:
        url = make_url(database_url)
        self.kind, self.folder = url.get_backend_name(), folder
        self.engine: Engine = create_engine(with_driver(url), isolation_level="AUTOCOMMIT", pool_size=1)
        self.broker = redis.Redis.from_url(broker_url) if broker_url.startswith("redis") else None

    def look(self, processes: Mapping[str, int]) -> Sample:
        """Return every figure by name."""
        found: Sample = {}
        for name, pid in processes.items():
            found |= {f"{name}: {what}": value for what, value in of_process(pid).items()}
        return found | self._database() | self._broker() | self._left()

    def _left(self) -> Sample:
        """Count the temporary folders that are ours, and those of others."""
        ours = len(list(self.folder.glob("celery_tm-*")))
        return {"temporary: folders": float(ours), "temporary: others": float(len(list(self.folder.iterdir())) - ours)}

    def _database(self) -> Sample:
        found: Sample = {}
        with self.engine.connect() as connection:
            for row in connection.execute(text(_SIZES[self.kind])).mappings() if self.kind in _SIZES else ():
                found[f"{row['name']}: rows"] = float(row["live"] or 0)
                found[f"{row['name']}: dead rows"] = float(row["dead"] or 0)
                found[f"{row['name']}: table"] = float(row["size"] or 0) / MB
                found[f"{row['name']}: indexes"] = float(row["indexes"] or 0) / MB
            if self.kind in _CONNECTIONS:
                found["database: connections"] = float(connection.execute(text(_CONNECTIONS[self.kind])).scalar_one())
        return found

    def _broker(self) -> Sample:
        if self.broker is None:
            return {}
        info = self.broker.info("memory")
        clients = self.broker.info("clients")["connected_clients"]
        used = info["used_memory_dataset"] / MB
        return {"broker: data": used, "broker: keys": float(self.broker.dbsize()), "broker: connections": float(clients)}

    def close(self) -> None:
        """Close what was opened to look."""
        self.engine.dispose()
        if self.broker is not None:
            self.broker.close()
