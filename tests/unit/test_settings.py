"""Settings: typos and bad values are refused by name, and each has its default, its kind and its sentence."""

from __future__ import annotations

from dataclasses import Field, fields
from datetime import timedelta
from typing import Any

import pytest

from celery_tm.errors import InvalidValue, UnknownSetting
from celery_tm.settings import DEFAULT_URL, FROM_ENVIRONMENT, NAMES, Settings, read_settings

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
ALL = fields(Settings)

BAD = {
    "text": ["", "   ", 5, ["a"], True],
    "flag": ["yes", "false", 1, 0],
    "count": [-1, 1.5, "5", True],
    "duration": ["soon", 0, -1, "0s", "", float("nan"), True, [5], "30 parsecs"],
    "mapping": ["a=b", 5, [("a", "b")]],
}
GOOD: dict[str, list[tuple[Any, Any]]] = {
    "text": [("x", "x")],
    "flag": [(True, True), (False, False)],
    "count": [(7, 7)],
    "duration": [(5, 5 * SECOND), ("5m", 5 * MINUTE), (MINUTE, MINUTE), ("2.5", 2.5 * SECOND)],
    "mapping": [({}, {}), ({"a": "b"}, {"a": "b"})],
}
BAD_VALUES = [(setting.name, value) for setting in ALL for value in BAD[setting.metadata["kind"]]]
GOOD_VALUES = [(s.name, given, meant) for s in ALL for given, meant in GOOD[s.metadata["kind"]]]


def test_without_configuration_every_setting_has_its_default() -> None:
    settings = read_settings({}, {})

    assert settings == Settings()
    assert settings.tm_database_url == DEFAULT_URL == "sqlite:///celery_tm.db"
    assert (settings.tm_lease, settings.tm_poll_interval) == (30 * SECOND, SECOND)
    assert (settings.tm_backoff_cap, settings.tm_schema) == (60 * MINUTE, None)


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_every_setting_is_named_tm_has_a_known_kind_and_a_sentence_about_it(setting: Field[Any]) -> None:
    assert setting.name.startswith("tm_")
    assert setting.metadata["kind"] in BAD
    assert len(setting.metadata["about"]) > 10


@pytest.mark.parametrize(("name", "given", "meant"), GOOD_VALUES)
def test_a_setting_is_taken_from_the_app_s_configuration(name: str, given: Any, meant: Any) -> None:
    assert getattr(read_settings({name: given}, {}), name) == meant


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_a_bad_value_is_refused_by_the_setting_s_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidValue, match=f"^{name}: ") as refusal:
        read_settings({name: value}, {})

    assert refusal.value.remedy


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tm_leese", "tm_lease"),
        ("tm_database_uri", "tm_database_url"),
        ("tm_pol_interval", "tm_poll_interval"),
        ("tm_keep_key", "tm_keep_keys"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_one_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(UnknownSetting, match=f"unknown setting '{name}', did you mean '{meant}'"):
        read_settings({name: 1}, {})


def test_an_unknown_setting_like_no_other_is_refused_with_where_they_are_listed() -> None:
    with pytest.raises(UnknownSetting, match=r"unknown setting 'tm_xyzzy'; docs/reference/settings\.md lists them all"):
        read_settings({"tm_xyzzy": 1}, {})


def test_settings_of_others_are_left_alone() -> None:
    assert read_settings({"broker_url": "redis://", "task_time_limit": "x", "TM": 1}, {}) == Settings()


def test_the_environment_gives_the_urls_and_the_lease() -> None:
    environ = {"TM_DATABASE_URL": "postgresql://db/shop", "TM_SCHEMA": "time_management", "TM_LEASE": "45", "TM_OTHER": "x"}
    settings = read_settings({}, environ)

    assert settings == Settings(
        tm_database_url="postgresql://db/shop", tm_schema="time_management", tm_lease=45 * SECOND
    )


@pytest.mark.parametrize(("text", "lease"), [("45", 45), ("2.5", 2.5), ("1m", 60), ("1m 30s", 90)])
def test_the_lease_of_the_environment_may_be_seconds_or_a_duration(text: str, lease: float) -> None:
    assert read_settings({}, {"TM_LEASE": text}).tm_lease == lease * SECOND


def test_the_app_s_configuration_goes_before_the_environment() -> None:
    assert read_settings({"tm_lease": 5}, {"TM_LEASE": "45"}).tm_lease == 5 * SECOND


def test_an_empty_variable_of_the_environment_is_none() -> None:
    assert read_settings({}, dict.fromkeys(FROM_ENVIRONMENT.values(), "")) == Settings()


@pytest.mark.parametrize("text", ["soon", "0", "-5", "²", "١٢²"])
def test_a_bad_lease_in_the_environment_is_refused_by_the_setting_s_name(text: str) -> None:
    with pytest.raises(InvalidValue, match="^tm_lease: "):
        read_settings({}, {"TM_LEASE": text})


def test_what_the_environment_may_give_is_a_setting() -> None:
    assert set(FROM_ENVIRONMENT) <= NAMES


@pytest.mark.parametrize("setting", [s for s in ALL if s.default is None], ids=lambda setting: setting.name)
def test_a_setting_that_may_be_open_can_be_set_to_none(setting: Field[Any]) -> None:
    assert getattr(read_settings({setting.name: None}, {}), setting.name) is None


@pytest.mark.parametrize("setting", [s for s in ALL if s.default is not None], ids=lambda setting: setting.name)
def test_none_for_any_other_setting_means_its_default_or_is_refused(setting: Field[Any]) -> None:
    try:
        settings = read_settings({setting.name: None}, {})
    except InvalidValue as refusal:
        assert refusal.field == setting.name
    else:
        assert getattr(settings, setting.name) == getattr(Settings(), setting.name)


def test_a_claim_batch_of_zero_is_refused_since_nothing_would_ever_be_dispatched() -> None:
    with pytest.raises(InvalidValue, match="tm_claim_batch"):
        read_settings({"tm_claim_batch": 0}, {})


@pytest.mark.parametrize("aliases", [{"onprem": 5}, {"onprem": None}, {5: "queue"}])
def test_a_queue_alias_that_is_no_text_is_refused(aliases: Any) -> None:
    with pytest.raises(InvalidValue, match="tm_queue_aliases"):
        read_settings({"tm_queue_aliases": aliases}, {})


def test_a_mapping_of_the_configuration_is_copied() -> None:
    aliases = {"onprem": "onprem-queue"}
    settings = read_settings({"tm_queue_aliases": aliases}, {})
    aliases["onprem"] = "elsewhere"

    assert settings.tm_queue_aliases == {"onprem": "onprem-queue"}


def test_defaults_are_not_shared_between_installations() -> None:
    assert Settings().tm_publish_retry is not Settings().tm_publish_retry


def test_a_lease_is_renewed_three_times_before_it_ends() -> None:
    assert read_settings({"tm_lease": 30}, {}).renew_every == 10
