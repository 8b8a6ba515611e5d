"""The fixtures as a stranger's project gets them: by the entry point, in a directory of its own."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from kraftpy import __version__

pytest_plugins = "pytester"

ROOT = Path(__file__).resolve().parents[2]
OURS = ["-p", "no:randomly", "-p", "no:cacheprovider"]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A stranger's project, for which the package is installed: found by its metadata, not by our configuration."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    installed = pytester.mkdir("installed")
    about = installed / f"kraftpy-{__version__}.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: kraftpy\nVersion: {__version__}\n")
    about.joinpath("entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in declared.items()
        )
    )
    monkeypatch.setenv("PYTHONPATH", f"{installed}:{ROOT}")
    return pytester


def test_a_stranger_gets_a_broker(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        from kraftpy.client import BlockingProducer

        def test_one(kraftpy_broker):
            with BlockingProducer(bootstrap_servers=kraftpy_broker.bootstrap) as producer:
                assert producer.send("events", b"first").offset == 0
            assert "num.partitions=1" not in kraftpy_broker.ready_line

        def test_two(kraftpy_broker):
            with BlockingProducer(bootstrap_servers=kraftpy_broker.bootstrap) as producer:
                assert producer.send("events", b"second").offset == 1, "the session's"
        """
    )
    project.runpytest_subprocess(*OURS, timeout=60).assert_outcomes(passed=2)


def test_a_stranger_gets_a_cluster_as_wanted(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def kraftpy_cluster_options():
            return {"brokers": 1, "settings": {"num.partitions": "7"}, "racks": ["cellar"]}
        """
    )
    project.makepyfile(
        """
        from kraftpy.client import BlockingAdmin, NewTopic, BlockingProducer

        def test_one(kraftpy_cluster):
            assert kraftpy_cluster.brokers == (1,)
            with BlockingProducer(bootstrap_servers=kraftpy_cluster.bootstrap_servers) as producer:
                producer.send("events", b"first", partition=6)
                kraftpy_cluster.kill(1)
                kraftpy_cluster.start(1)
                producer.send("events", b"second", partition=6)

        def test_two(kraftpy_cluster):
            with BlockingAdmin(bootstrap_servers=kraftpy_cluster.bootstrap_servers) as admin:
                assert not admin.list_topics(), "each test has its own"
        """
    )
    project.runpytest_subprocess(*OURS, timeout=60).assert_outcomes(passed=2)


def test_where_a_test_fails_the_report_has_the_nodes_logs(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def kraftpy_cluster_options():
            return {"brokers": 1, "settings": {"remote.log.manager.thread.pool.size": "7"}}
        """
    )
    project.makepyfile(
        """
        def test_one(kraftpy_cluster):
            print("directory:", kraftpy_cluster.directory)
            assert False
        """
    )
    result = project.runpytest_subprocess(*OURS, "--kraftpy-keep", timeout=60)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*kraftpy node 1*", "*remote.log.manager.thread.pool.size is ignored*"])
    result.stdout.fnmatch_lines(["*data and logs are in *"])
    (line,) = [line for line in result.outlines if line.startswith("directory: ")]
    assert (Path(line.removeprefix("directory: ")) / "node-1" / "data").is_dir()


def test_a_project_without_our_fixtures_loads_nothing_of_ours_but_the_plugin(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import sys

        def test_one():
            ours = {name for name in sys.modules if name.startswith("kraftpy.")}
            assert ours == {"kraftpy.testing", "kraftpy.testing.pytest_plugin"}
        """
    )
    project.runpytest_subprocess(*OURS, timeout=60).assert_outcomes(passed=1)


def test_a_failure_under_chaos_says_how_to_repeat_it(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def kraftpy_cluster_options():
            return {"brokers": 1}
        """
    )
    project.makepyfile(
        """
        def test_what_fails_later(kraftpy_cluster, kraftpy_seed):
            with kraftpy_cluster.chaos(kraftpy_seed, faults=1, kinds=["pause"], lasts=(0.1, 0.1)) as chaos:
                chaos.wait()
            assert kraftpy_seed == 0, "found only after the block"

        def test_what_has_no_chaos(kraftpy_seed):
            assert kraftpy_seed == 0
        """
    )
    result = project.runpytest_subprocess(*OURS, "--kraftpy-seed=12345", timeout=60)
    result.assert_outcomes(failed=2)
    text = result.stdout.str()
    assert text.count("--kraftpy-seed=12345 repeats it") == 2
    assert text.count("chaos(12345): repeat it with this seed.") == 1, "of the test that failed, and of no other"
    assert "healed: pause node 1 for 0.10 s" in text
    result = project.runpytest_subprocess(*OURS, "--kraftpy-seed=0", timeout=60)
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*repeats it*")


def test_a_seed_is_another_one_in_every_session(project: pytest.Pytester) -> None:
    project.makepyfile("def test_one(kraftpy_seed): raise ValueError(f'the seed is {kraftpy_seed}')")
    seeds = set()
    for _ in range(2):
        result = project.runpytest_subprocess(*OURS, timeout=60)
        found = [line for line in result.outlines if "the seed is" in line]
        assert found
        seeds.add(found[-1])
    assert len(seeds) == 2
