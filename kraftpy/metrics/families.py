"""A page of metrics as text: Prometheus's format 0.0.4, and OpenMetrics 1.0.

    page = Page()
    add = page.family("kafka_log_log_size")
    add(labels(topic="a", partition=0), 4096)
    page.text(OPEN_METRICS)

Lines of samples are the same in both formats, so a page is collected once. A family has to be in the catalogue, which
gives its type and its meaning.

Not prometheus-client's own exposition, because that takes four times as long: 3 us a sample instead of 0.7, and a page
may have more than 100,000 (decision 48). Tests parse both formats with prometheus-client's parsers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kraftpy.metrics.catalogue import CATALOGUE, Kind, Meaning
from kraftpy.metrics.confluent import confluent_line, confluent_name

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Add = Callable[[str, float], None]
"""Adds a sample: its labels as `labels` returns them, and its value."""

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def escaped(value: str) -> str:
    """Escape the value of a label. Characters that UTF-8 cannot encode become question marks."""
    if value.isalnum():
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    return value.translate(_ESCAPED).encode("utf-8", "replace").decode()


def labels(**values: object) -> str:
    """Return labels as they stand between the braces, in this order."""
    return ",".join(f'{name}="{escaped(str(value))}"' for name, value in values.items())


class Page:
    """The metrics of one scrape."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def family(self, name: str) -> Add:
        """Return what adds samples to a family of the catalogue. Raises KeyError if it is not there."""
        _ = CATALOGUE[name]
        add_line = self._lines.setdefault(name, []).append

        def add(labelled: str, value: float) -> None:
            add_line(f"{name}{{{labelled}}} {value}" if labelled else f"{name} {value}")

        return add

    def add(self, name: str, value: float, labelled: str = "") -> None:
        """Add one sample."""
        self.family(name)(labelled, value)

    def summary(self, name: str, labelled: str, quantiles: dict[str, float], count: int, total: float) -> None:
        """Add a summary: quantiles by their labels, such as "0.99", and the count and the sum since the start."""
        lines = self._lines.setdefault(name, [])
        comma = f"{labelled}," if labelled else ""
        lines += [f'{name}{{{comma}quantile="{each}"}} {value}' for each, value in quantiles.items()]
        braces = f"{{{labelled}}}" if labelled else ""
        lines.append(f"{name}_count{braces} {count}")
        lines.append(f"{name}_sum{braces} {total}")

    def alias(self, name: str, other: str) -> None:
        """Show a family under another name of the catalogue as well, with the same samples."""
        length = len(name)
        self._lines[other] = [other + line[length:] for line in self._lines.get(name, ())]

    def names(self) -> list[str]:
        """Return the names of the families that have samples, sorted."""
        return sorted(name for name, lines in self._lines.items() if lines)

    def texts(self, content_type: str, *, as_confluent: bool = False) -> Iterator[str]:
        """Yield the text of each family; OpenMetrics also needs `END` after the last.

        `as_confluent`: use the names of Confluent's rules (`confluent`).
        """
        is_open = content_type == OPEN_METRICS
        for name in self.names():
            lines, meaning = self._lines[name], CATALOGUE[name]
            shown = confluent_name(name) if as_confluent else name
            if as_confluent and (shown != name or any(each != each.lower() for each in meaning.labels)):
                lines = [confluent_line(line, name, shown) for line in lines]
            yield head(shown, meaning, is_open=is_open) + "\n".join(lines) + "\n"


END: Final = "# EOF\n"


def head(name: str, meaning: Meaning, *, is_open: bool) -> str:
    """Return the lines that introduce a family."""
    family = name.removesuffix("_total") if is_open and meaning.kind is Kind.COUNTER else name
    text = meaning.text.translate(_ESCAPED) if is_open else meaning.text.replace("\\", r"\\").replace("\n", r"\n")
    kind = meaning.kind.value
    if is_open and meaning.kind is Kind.COUNTER and family == name:  # a counter's name has to end in _total
        kind = "unknown"
    return f"# HELP {family} {text}\n# TYPE {family} {kind}\n"
