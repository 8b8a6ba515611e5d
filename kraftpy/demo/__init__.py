"""`kraftpy demo`: real flights through three nodes and a Spark pipeline, with an audit that must balance.

The steps are small functions, one module each, that a notebook or a test can also call alone. `flights` reads the
input, `replay` produces it while `outage` kills a node, `transformations/` is the pipeline (`kraftpy.pipeline` runs
it), `consume` reads the topic with a consumer group, `windows` reads the pipeline's results, `tiers` counts what each
tier has, `audit` compares, and `delays`, `show` and `plot` present; `interrupts` shuts the demo down cleanly; `run`
puts the steps in order. Nothing heavy is imported here, so that `kraftpy --help` stays fast.
"""

from __future__ import annotations

from pathlib import Path


def main(output: Path | str = "demo-output") -> int:
    """Run the demo with its files below `output`. Returns the exit status: 0 if the audit balances."""
    from kraftpy.demo.run import run

    return run(Path(output))
