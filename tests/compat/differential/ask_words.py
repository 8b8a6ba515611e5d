"""The words of error codes: users search for what Kafka says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from both import each
from differ import Differ
from peer_clusters import kafka_class_path
from scenario_table import scenario
from side import Side

from kraftpy.protocol.errors import ErrorCode

OF_KAFKA_4_3 = [code for code in ErrorCode if code < ErrorCode.GROUP_DELETION_FAILED]
SOURCE = Path(__file__).resolve().parent / "ErrorWords.java"


def _words(side: Side) -> dict[str, str]:
    """Return one side's words for each error code, by name."""
    if side.cluster.kind == "kraftpy":
        return {
            code.name: f"{int(code)} {code.name} {str(code.retriable).lower()} {code.meaning}" for code in OF_KAFKA_4_3
        }
    command = ("java", "-cp", kafka_class_path(), str(SOURCE))
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split(" ", 2)[1]: line for line in lines}


@scenario
def words_of_error_codes(differ: Differ) -> None:
    told = each(differ.own(_words))
    for code in OF_KAFKA_4_3:
        differ.compare_outcomes("ErrorCode", code.name, [words.get(code.name, "unknown") for words in told])
    outcomes = [", ".join(sorted(words)) for words in told]
    differ.compare_outcomes("ErrorCode", "all names", outcomes)
