"""Each defect that was mended can be brought back: there is a patch for it, and the patch still applies."""

from __future__ import annotations

from pathlib import Path

import pytest

from storm.put_back import IDS, PATCHES, ROOT, Outcome, apply, patches, same, table


@pytest.mark.parametrize("id", IDS)
def test_there_is_a_patch_that_applies(id: str) -> None:
    patch = PATCHES / f"{id}.patch"
    assert patch.exists(), f"no patch brings {id} back"
    assert apply(patch, ROOT, check=True) == ""


def test_no_patch_is_without_a_finding() -> None:
    assert {path.stem for path in PATCHES.glob("*.patch")} == set(patches())


def test_a_patch_changes_the_package_only() -> None:
    for patch in patches().values():
        changed = [line.split()[1] for line in patch.read_text().splitlines() if line.startswith("+++ ")]
        assert changed, patch
        assert all(name.startswith("b/celery_tm/") for name in changed), patch


def test_a_complaint_is_known_again_though_ids_and_counts_differ() -> None:
    id = "0198c6f2-{}-2222-3333-444444444444"
    one, other = f"job {id.format(1111)} ran 3 times", f"job {id.format(9999)} ran 2 times"
    assert same(one) == same(other)
    assert same(one) != same("job 7 was lost")


def test_the_table_says_who_noticed(tmp_path: Path) -> None:
    told = table([Outcome("W1", "storm", "c3 | lost", 12.4), Outcome("W2", "storm", "", 3), Outcome("W2", "locks", "", 4)])
    assert told.splitlines()[2:] == ["| W1 | storm | c3 / lost | 12 |", "| W2 | NOTHING |  | 7 |"]
