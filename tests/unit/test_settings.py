"""The `tm_…` settings: where they come from, what they default to, and what is refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from typing import Any

import pytest

from celery_tm.errors import InvalidValue, TmError, UnknownSetting
from celery_tm.settings import DEFAULT_URL, FROM_ENVIRONMENT, MAX_APP_NAME, NAMES, Settings, read_settings

KINDS = {field.name: field.metadata["kind"] for field in fields(Settings)}
OPTIONAL = {"tm_schema", "tm_auto_upgrade", "tm_default_queue", "tm_max_in_flight", "tm_admins"}
BAD: dict[str, list[Any]] = {
    "app": [5, "", "  ", b"shop", ["shop"], "x" * (MAX_APP_NAME + 1), "a\nb", "a\x00b"],
    "update_policy": ["soon", 1, [], ""],
    "policy": [7, True, ["fixed"]],
    "identifier": [1, "", 'a"b', "a b", "1a", "a;b", "x" * 51, "schémá"],
    "text": [5, "", "  ", b"text", ["a"]],
    "flag": [1, 0, "yes", "true", []],
    "count": [-1, 1.5, "3", True, [1]],
    "kept": [0, "soon", True, [1], {"success": "1d"}, {"failed": "soon"}, {1: "1d"}],
    "number": [-1, 1.5, "3", True, [1], 10_001],
    "duration": [0, -1, "soon", "", True, timedelta(0), timedelta(-1), "0s", float("nan"), [1], "²", "1.2.3"],
    "mapping": [5, "a=b", ["a"], [("a", "b")]],
    "names": [5, "a=b", ["a"], {"a": 5}],
    "patterns": [5, "*password*", {"a": 5}, [5], [""], [" a"], ["shop.pay:"], [":card"], [None]],
    "ports": [0, -1, 65_535, "9808", 1.5, True, [9808], {"beats": 1}, {"beat": 0}, {"worker": "9809"}, {"beat": 65_536}],
    "users": [5, "ann", {"a": 5}, [5], [""], ["ann "], [None]],
    "rows": [5, ["logs"], {"logs": 0}, {"logs": "many"}, {"log": 5}, {"jobs": 5}, {1: 5}],
}


def test_nothing_stated_gives_the_defaults() -> None:
    assert read_settings({}, {}) == Settings()


def test_the_defaults_are_those_that_were_promised() -> None:
    settings = Settings()

    assert settings.tm_database_url == DEFAULT_URL == "sqlite:///celery_tm.db"
    assert settings.tm_lease == timedelta(seconds=30)
    assert settings.tm_backoff_cap == timedelta(minutes=60)
    assert settings.tm_backoff_floor == timedelta(seconds=1)
    assert settings.tm_keep_keys == timedelta(days=7)
    assert settings.tm_default_queue is None
    assert settings.tm_queue_aliases == {}
    assert settings.tm_stuck_after == timedelta(hours=24)
    assert settings.tm_task_timeout is None
    assert settings.tm_poll_interval == timedelta(seconds=1)
    assert settings.tm_max_in_flight is None
    assert (settings.tm_keep_executions, settings.tm_keep_audit) == (timedelta(days=90), timedelta(days=365))


def test_a_lease_is_renewed_three_times_before_it_ends() -> None:
    assert Settings(tm_lease=timedelta(seconds=45)).renew_every == 15


def test_other_settings_of_the_app_are_none_of_ours() -> None:
    assert read_settings({"broker_url": "memory://", "task_default_queue": "q", "TM_LEASE": 5}, {}) == Settings()


def test_a_stated_setting_is_read() -> None:
    settings = read_settings(
        {
            "tm_database_url": "postgresql+psycopg://db/jobs",
            "tm_schema": "time_management",
            "tm_auto_upgrade": False,
            "tm_lease": "1m 30s",
            "tm_poll_interval": 0.25,
            "tm_claim_batch": 50,
            "tm_max_in_flight": 1000,
            "tm_stuck_after": "6h",
            "tm_queue_aliases": {"onprem": "onprem-queue"},
            "tm_keep_keys": timedelta(days=1),
        },
        {},
    )

    assert settings == Settings(
        tm_database_url="postgresql+psycopg://db/jobs",
        tm_schema="time_management",
        tm_auto_upgrade=False,
        tm_lease=timedelta(seconds=90),
        tm_poll_interval=timedelta(milliseconds=250),
        tm_claim_batch=50,
        tm_max_in_flight=1000,
        tm_stuck_after=timedelta(hours=6),
        tm_queue_aliases={"onprem": "onprem-queue"},
        tm_keep_keys=timedelta(days=1),
    )


def test_a_misspelt_setting_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(UnknownSetting, match="'tm_databse_url', did you mean 'tm_database_url'"):
        read_settings({"tm_databse_url": "sqlite://"}, {})


def test_a_setting_like_no_other_is_refused_with_the_place_to_look() -> None:
    with pytest.raises(UnknownSetting, match=r"'tm_xyzzy_plugh'; docs/reference/settings\.md"):
        read_settings({"tm_xyzzy_plugh": 1}, {})


@pytest.mark.parametrize(("name", "value"), [(name, bad) for name, kind in KINDS.items() for bad in BAD[kind]])
def test_a_bad_value_is_refused_with_the_settings_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidValue) as refused:
        read_settings({name: value}, {})

    assert refused.value.field == name


@pytest.mark.parametrize("name", sorted(NAMES - OPTIONAL))
def test_none_where_a_value_is_needed_is_refused_or_means_the_default(name: str) -> None:
    try:
        settings = read_settings({name: None}, {})
    except TmError as refused:
        assert name in str(refused)  # noqa: PT017
    else:
        assert getattr(settings, name) == getattr(Settings(), name)


@pytest.mark.parametrize("name", sorted(OPTIONAL))
def test_none_leaves_an_optional_setting_unset(name: str) -> None:
    assert getattr(read_settings({name: None}, {}), name) is None


def test_the_environment_is_read_where_the_app_says_nothing() -> None:
    environ = {"TM_DATABASE_URL": "sqlite:///env.db", "TM_SCHEMA": "env", "TM_LEASE": "45s", "TM_OTHER": "x"}

    assert read_settings({}, environ) == Settings(
        tm_database_url="sqlite:///env.db", tm_schema="env", tm_lease=timedelta(seconds=45)
    )


def test_the_app_goes_before_the_environment() -> None:
    assert read_settings({"tm_lease": 10}, {"TM_LEASE": "45s"}).tm_lease == timedelta(seconds=10)


@pytest.mark.parametrize(("text", "seconds"), [("45", 45), ("0.5", 0.5), ("2m", 120)])
def test_the_environment_may_give_plain_seconds(text: str, seconds: float) -> None:
    assert read_settings({}, {"TM_LEASE": text}).tm_lease == timedelta(seconds=seconds)


def test_an_empty_variable_of_the_environment_counts_as_unset() -> None:
    assert read_settings({}, dict.fromkeys(FROM_ENVIRONMENT.values(), "")) == Settings()


@pytest.mark.parametrize("text", ["0", "soon", "-5s"])
def test_a_bad_value_in_the_environment_is_refused_with_the_settings_name(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"^tm_lease: "):
        read_settings({}, {"TM_LEASE": text})


def test_every_variable_of_the_environment_belongs_to_a_setting() -> None:
    assert set(FROM_ENVIRONMENT) <= NAMES
    assert all(env == name.upper() for name, env in FROM_ENVIRONMENT.items())


def test_every_setting_says_what_it_is_for() -> None:
    assert [field.name for field in fields(Settings) if not field.metadata.get("about")] == []
    assert all(name.startswith("tm_") for name in NAMES)


def test_settings_cannot_be_changed_and_share_no_mapping() -> None:
    aliases = {"a": "b"}
    settings = read_settings({"tm_queue_aliases": aliases}, {})
    aliases["c"] = "d"

    assert settings.tm_queue_aliases == {"a": "b"}
    assert Settings().tm_publish_retry is not Settings().tm_publish_retry
    with pytest.raises(FrozenInstanceError):
        settings.tm_verbose = True  # type: ignore[misc]


def test_metrics_ports_are_the_stated_ones_or_one_after_the_other() -> None:
    assert [Settings().port_of(kind) for kind in ("beat", "worker")] == [None, None]
    both = read_settings({"tm_metrics_port": 9808}, {})
    assert [both.port_of(kind) for kind in ("beat", "worker")] == [9808, 9809]
    one = read_settings({"tm_metrics_port": {"worker": 65_535}}, {})
    assert [one.port_of(kind) for kind in ("beat", "worker")] == [None, 65_535]
