"""`kraftpy` and `python -m kraftpy`: the command line."""

from __future__ import annotations


def main() -> None:
    """Run the command line on the process's arguments and exit with its status."""
    from kraftpy.cli import cli

    cli(prog_name="kraftpy")


if __name__ == "__main__":
    main()
