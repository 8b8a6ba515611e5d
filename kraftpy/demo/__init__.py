"""`kraftpy demo`: real flights through a broker, a consumer group and Spark, with an audit at the end.

The steps are small functions, one module each, that a notebook or a test can call alone: `java` finds a Java for Spark,
`flights` reads the input, `load` produces it, `consume` reads it with a consumer group, `analyse` runs Spark, `plot`
draws, `audit` compares the counts; `run` puts them in order and prints. Nothing heavy is imported here, so that
`kraftpy --help` stays quick.
"""

from __future__ import annotations

from pathlib import Path


def main(output: Path | str = "demo-output") -> int:
    """Run the demo, with its files below `output`. Returns the exit status: 0 when the audit balances."""
    from kraftpy.demo.run import run

    return run(Path(output))
