"""Spark's own Kafka connector (spark-sql-kafka-0-10), fetched by Maven."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pyspark

HERE = Path(__file__).resolve().parent
ARTIFACTS = "spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2"
"""The jars that Spark does not come with."""
BEFORE = "4.2.0"
"""A version that repositories have which lack that of the newest Spark."""


def connector(scratch: Path) -> tuple[str, list[Path]]:
    """Return its version and the jars, which are put into `scratch`: the installed PySpark's, or else `BEFORE`."""
    wanted = pyspark.__version__
    shutil.copy(HERE / "java_spark" / "pom.xml", scratch)
    words = ["mvn", "--batch-mode", "--quiet", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
    words.append(f"-DincludeArtifactIds={ARTIFACTS}")
    for version in (wanted, BEFORE):
        done = subprocess.run([*words, f"-Dconnector={version}"], cwd=scratch, capture_output=True, text=True)
        if done.returncode == 0:
            jars = sorted((scratch / "lib").glob("*.jar"))
            found = next(path.stem for path in jars if path.name.startswith("spark-sql-kafka"))
            return found.rpartition("_2.13-")[2], jars
    raise SystemExit(f"no Kafka connector of Spark {wanted} could be fetched: {done.stdout}{done.stderr}")
