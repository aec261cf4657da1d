"""The pages inside Flower, as a list of address, handler and name; `installing` adds them to Flower's own.

One module for each page: its handler reads in `gather` what its template shows, through `TimeManagement`, and every argument
passes the redaction of `presentation`. Pages change nothing: their forms go to the API.
"""

from __future__ import annotations

from ..base import PageHandler
from .calendar import CalendarPage
from .dead_letters import DeadLettersPage, PreviewPage
from .definition import DefinitionPage
from .edit import EditPage
from .health import HealthPage
from .history import AuditPage, HistoryPage
from .instants import InstantsPage
from .jobs import JobPage, JobsPage
from .run import RunPage
from .schedules import SchedulesPage

PAGES: list[tuple[str, type[PageHandler], str]] = [
    (r"/tm", SchedulesPage, "tm"),
    (r"/tm/definition/([^/]+)", DefinitionPage, "tm_definition"),
    (r"/tm/definition/([^/]+)/edit", EditPage, "tm_edit"),
    (r"/tm/instants", InstantsPage, "tm_instants"),
    (r"/tm/jobs", JobsPage, "tm_jobs"),
    (r"/tm/job/([^/]+)", JobPage, "tm_job"),
    (r"/tm/run/([^/]+)", RunPage, "tm_run"),
    (r"/tm/history", HistoryPage, "tm_history"),
    (r"/tm/dead-letters", DeadLettersPage, "tm_dead_letters"),
    (r"/tm/dead-letters/preview", PreviewPage, "tm_dead_letters_preview"),
    (r"/tm/calendar", CalendarPage, "tm_calendar"),
    (r"/tm/health", HealthPage, "tm_health"),
    (r"/tm/audit", AuditPage, "tm_audit"),
]
