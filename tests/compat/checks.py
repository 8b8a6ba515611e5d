"""The results of a suite that is a script: a line for each check, and their number at the end."""

from __future__ import annotations


class Checks:
    """The results of checks, a line each."""

    def __init__(self) -> None:
        self.right = 0
        self.wrong: list[str] = []

    def see(self, what: str, shown: str | None) -> None:
        """Note a check; `shown` is None if all was right."""
        print(f"{'ok   ' if shown is None else 'WRONG'} {what}", flush=True)
        if shown is None:
            self.right += 1
        else:
            self.wrong.append(f"{what}: {shown}")
