"""`kraftpy demo`: real flights through three nodes and a Spark pipeline, with an audit that must balance.

The steps are small functions, one module each, that a notebook or a test can call alone: `flights` reads the input,
`replay` produces it, `outage` kills a node meanwhile, `transformations/` is the pipeline (`kraftpy.pipeline` runs it),
`consume` reads the topic with a consumer group, `windows` has what the pipeline told, `tiers` what is where, `audit`
compares, `delays`, `show` and `plot` show; `interrupts` ends it early and in order; `run` puts the steps in order.
Nothing heavy is imported here, so that `kraftpy --help` stays quick.
"""

from __future__ import annotations

from pathlib import Path


def main(output: Path | str = "demo-output") -> int:
    """Run the demo, with its files below `output`. Returns the exit status: 0 when the audit balances."""
    from kraftpy.demo.run import run

    return run(Path(output))
