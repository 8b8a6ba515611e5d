"""The pytest plugin: fixtures `kraftpy_broker` and `kraftpy_cluster`, available once kraftpy is installed.

`kraftpy_broker` is a running `EmbeddedBroker`, one for the whole session. `kraftpy_cluster` is a running `Cluster` of
three brokers, a new one for each test; if a test fails, its report has the end of each node's log.

Their arguments come from the fixtures `kraftpy_broker_options` and `kraftpy_cluster_options`: dictionaries of the two
classes' arguments, empty unless a project overrides them. Their scopes are set in pytest's own configuration:
`kraftpy_broker_scope` and `kraftpy_cluster_scope`, one of function, class, module, package, session; an overriding
fixture of options needs a scope at least as wide. `--kraftpy-keep` keeps the clusters' data if a test failed.

`kraftpy_seed` is a number for `cluster.chaos`: that of `--kraftpy-seed`, or a new one in every session. If a test
fails, its report has the seed and what chaos did.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # every pytest run loads this module: the rest is imported with the first fixture
    from kraftpy.testing.cluster import EmbeddedBroker
    from kraftpy.testing.nodes import Cluster

_LOG_CHARACTERS = 4000
_CLUSTER = pytest.StashKey["Cluster"]()
_FAILED = pytest.StashKey[bool]()
_SEED = pytest.StashKey[int]()
_MANY_SEEDS = 1_000_000


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's settings."""
    parser.addini("kraftpy_broker_scope", "scope of kraftpy_broker: function, class, ..., session", default="session")
    parser.addini(
        "kraftpy_cluster_scope", "scope of kraftpy_cluster: function, class, ..., session", default="function"
    )
    group = parser.getgroup("kraftpy")
    group.addoption("--kraftpy-keep", action="store_true", help="keep a kraftpy cluster's data if its test failed")
    group.addoption("--kraftpy-seed", type=int, metavar="N", help="value of kraftpy_seed, to repeat a session's chaos")


def _broker_scope(fixture_name: str, config: pytest.Config) -> Any:
    return config.getini("kraftpy_broker_scope")


def _cluster_scope(fixture_name: str, config: pytest.Config) -> Any:
    return config.getini("kraftpy_cluster_scope")


@pytest.fixture(scope="session")
def kraftpy_broker_options() -> dict[str, Any]:
    """Arguments of `EmbeddedBroker`; override this fixture."""
    return {}


@pytest.fixture(scope="session")
def kraftpy_cluster_options() -> dict[str, Any]:
    """Arguments of `Cluster`; override this fixture."""
    return {}


@pytest.fixture(scope="session")
def kraftpy_seed(pytestconfig: pytest.Config) -> int:
    """A seed for `cluster.chaos(kraftpy_seed)`; reported if the test fails."""
    given = pytestconfig.getoption("--kraftpy-seed")
    seed: int = random.SystemRandom().randrange(_MANY_SEEDS) if given is None else given
    pytestconfig.stash[_SEED] = seed
    return seed


@pytest.fixture(scope=_broker_scope)
def kraftpy_broker(kraftpy_broker_options: dict[str, Any]) -> Iterator[EmbeddedBroker]:
    """A running broker: `bootstrap`, `kill()`, `start()`, `stop()`."""
    from kraftpy.testing.cluster import EmbeddedBroker

    with EmbeddedBroker(**kraftpy_broker_options) as broker:
        yield broker


@pytest.fixture(scope=_cluster_scope)
def kraftpy_cluster(request: pytest.FixtureRequest, kraftpy_cluster_options: dict[str, Any]) -> Iterator[Cluster]:
    """A running cluster: `bootstrap_servers`, `kill(1)`, `partition([1], [2, 3])`, and more."""
    from kraftpy.testing.nodes import Cluster

    is_kept = request.config.getoption("--kraftpy-keep")
    cluster = Cluster(**{"keep_on_failure": is_kept, **kraftpy_cluster_options})
    cluster.open()
    request.node.stash[_CLUSTER] = cluster
    try:
        yield cluster
    finally:
        failed = Exception("a test of the cluster failed") if request.node.stash.get(_FAILED, False) else None
        directory = cluster.directory
        cluster.close(failed)
        if failed is not None and is_kept:
            reporter = request.config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None:
                reporter.write_line(f"\nthe cluster's data and logs are in {directory}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the nodes' logs to the report of a test that failed."""
    report = yield
    if report.failed:
        for node in item.listchain():
            node.stash[_FAILED] = True
            if (cluster := node.stash.get(_CLUSTER, None)) is not None:
                for number in cluster.nodes:
                    if text := cluster.logs(number)[-_LOG_CHARACTERS:]:
                        report.sections.append((f"kraftpy node {number}", text))
        if "kraftpy_seed" in getattr(item, "fixturenames", ()) and _SEED in item.config.stash:
            report.sections.append(("kraftpy seed", f"--kraftpy-seed={item.config.stash[_SEED]} repeats it"))
    if (chaos := sys.modules.get("kraftpy.testing.chaos")) is not None:
        if report.failed:
            report.sections.extend(("kraftpy chaos", str(run)) for run in chaos.RUNS)
        if report.when == "teardown":
            chaos.RUNS.clear()
    return report
