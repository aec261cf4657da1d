"""Celery's own way to test clusters, with workers of this machine for nodes: what they promise holds when nodes die."""

from __future__ import annotations

import celery
import pytest
from pytest_celery import CeleryTestSetup
from tmtest.nodes import local_setup
from tmtest.stand import Stand

from celery_tm import defer


@pytest.fixture
def celery_setup(stand: Stand) -> CeleryTestSetup:
    """Two local worker nodes and a beat."""
    stand.beat()
    setup = local_setup(stand, workers=2)
    assert setup.ready()
    assert setup.ready(control=True, docker=False)
    return setup


def test_a_node_that_is_killed_loses_no_job_and_works_again_when_it_is_restarted(
    celery_setup: CeleryTestSetup, stand: Stand
) -> None:
    assert celery_setup.worker_cluster.versions == {celery.__version__}
    handle = defer(stand.app.tasks["sleepy"].s("long", 2.0))
    stand.wait(lambda: stand.effects("start"), what="a node at work")
    first, second = sorted(celery_setup.worker_cluster, key=lambda node: handle.id not in node.logs())

    first.kill()
    assert first.container.status == "exited"
    stand.wait_until_settled()
    first.restart()

    assert handle.state == "SUCCEEDED"
    [execution] = stand.tm.history(outcome="succeeded")
    assert execution.worker.startswith(f"{second.hostname()}:")
    second.kill("SIGTERM")
    last = defer(stand.app.tasks["effect"].s("last"))
    first.assert_log_exists(last.id)
    stand.wait(lambda: last.state == "SUCCEEDED", what="a job of the node that came back")
