"""The coming week as a heat map: how many instants each hour has, and of which definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from ...domain.schedule import read_zone
from ...management import TimeManagement
from ...management.forecast import HOUR, Forecast
from ..charts import Cell, heat_map
from .common import Page
from .reading import present
from .words import read_instant

DAYS, BUSIEST, NAMED, SOME = 7, 10, 3, 500
HOURS = [f"{hour:02}" for hour in range(24)]


class CalendarPage(Page):
    """A week from today on, in UTC or on the clocks of a time zone."""

    template = "tm_calendar.html"
    section = "calendar"

    def gather(self, tm: TimeManagement, *_path: str) -> Mapping[str, Any]:
        """Return the week, its busiest hours, and the one asked about in full."""
        zone = read_zone(self.query("zone", "UTC"))
        now = present(tm)
        start = now.astimezone(ZoneInfo(zone)).replace(minute=0, second=0, microsecond=0)
        forecast = tm.forecast(start, hours=DAYS * 24)
        hour = self.hour(forecast)
        return {
            "zone": zone,
            "zones": sorted(available_timezones()),
            "own_zones": sorted({one.timezone for one in tm.definitions.list(limit=SOME)} | {"UTC", zone}),
            "forecast": forecast,
            "chart": self.chart(forecast, ZoneInfo(zone)),
            "total": sum(forecast.totals),
            "busiest": [self.busy(forecast, number, now, zone) for number in self.most(forecast)],
            "hour": None if hour is None else self.busy(forecast, hour, now, zone),
            "entries": [] if hour is None else [(n, self.to_definition(n), c) for n, c in forecast.busiest(hour)[:100]],
        }

    def hour(self, forecast: Forecast) -> int | None:
        """Return the number of the hour that is asked about, if it is one of these."""
        text = self.query("hour")
        if text is None:
            return None
        number = (read_instant(text, field="hour") - forecast.since) // HOUR
        return number if 0 <= number < forecast.hours else None

    def chart(self, forecast: Forecast, zone: ZoneInfo) -> str:
        """Return the heat map: a column for each local day, a row for each local hour."""
        days: dict[Any, list[Cell | None]] = {}
        for number, count in enumerate(forecast.totals):
            local = (forecast.since + number * HOUR).astimezone(zone)
            cells = days.setdefault(local.date(), [None] * 24)
            there = cells[local.hour]  # clocks that go back have an hour twice
            cells[local.hour] = self.cell(forecast, number, count + (there.count if there else 0), local)
        columns = [(day.strftime("%a %-d"), cells) for day, cells in list(days.items())[: DAYS + 1]]
        label = f"Instants of the coming week by day and hour, {sum(forecast.totals)} in all; the tables say the same"
        return heat_map(columns, HOURS, label=label)

    def cell(self, forecast: Forecast, number: int, count: int, local: datetime) -> Cell:
        """Return one hour of the map."""
        names = [name for name, _ in forecast.busiest(number)[:NAMED]] if count else []
        about = "about " if any(name in forecast.estimated for name in names) else ""
        said = f"{about}{count} instants" + (f": {', '.join(names)}{' …' if len(names) == NAMED else ''}" if names else "")
        return Cell(
            count=count,
            title=f"{local:%a %-d %b %H:00}: {said}",
            href=self.address("tm_calendar", zone=str(local.tzinfo), hour=(forecast.since + number * HOUR).isoformat()),
        )

    def most(self, forecast: Forecast) -> Sequence[int]:
        """Return the numbers of the busiest hours, the busiest first."""
        totals = forecast.totals
        return sorted((n for n in range(forecast.hours) if totals[n]), key=lambda n: (-totals[n], n))[:BUSIEST]

    def busy(self, forecast: Forecast, number: int, now: datetime, zone: str) -> Mapping[str, Any]:
        """Return one hour with what fires most often in it."""
        start = forecast.since + number * timedelta(hours=1)
        found = forecast.busiest(number)
        return {
            "at": self.at(start, now, zone),
            "local": start.astimezone(ZoneInfo(zone)).strftime("%a %-d %b %H:00"),
            "count": sum(count for _, count in found),
            "names": [(name, self.to_definition(name), count) for name, count in found[:NAMED]],
            "more": max(len(found) - NAMED, 0),
            "href": self.address("tm_calendar", zone=zone, hour=start.isoformat()),
        }
