"""`kraftpy` and `python -m kraftpy`: the command line."""

from __future__ import annotations

import gc


def main() -> None:
    """Run the command line on the process's arguments and exit with its status."""
    gc.disable()  # modules live as long as the process, so there is nothing to collect until a command is imported
    from kraftpy.cli import cli

    cli(prog_name="kraftpy")


if __name__ == "__main__":
    main()
