"""The entry point of a test's node: `kraftpy server`, with a connection to the test that started it.

`python -m kraftpy.testing.node <descriptor> server ...`. The descriptor is one end of a socket; there is no other way
in: no setting, no variable, no port. It receives lines: the node's id and all rules (`rules`) in force from then on, as
JSON. The first line comes before anything starts; each later one is answered with a line once it is in force. Without
rules nothing of the broker is touched, and nothing more is loaded; the connection costs one sleeping thread.

If the test closes its end, no rule is in force any more.
"""

from __future__ import annotations

import json
import runpy
import socket
import sys
import threading


def main() -> None:
    """Listen to the test, and run the command line with the rest of the arguments."""
    test = socket.socket(fileno=int(sys.argv.pop(1)))
    test.set_inheritable(False)
    lines = test.makefile("rb", buffering=0)  # a buffered reader has a lock, which could hang the process as it ends
    _obey(lines.readline())

    def listen() -> None:
        for line in lines:
            _obey(line)
            try:
                test.sendall(b"ok\n")
            except OSError:
                break
        _obey(b"[0, []]")

    threading.Thread(target=listen, name="the test's rules", daemon=True).start()

    runpy.run_module("kraftpy", run_name="__main__", alter_sys=True)


def _obey(line: bytes) -> None:
    """Put exactly these rules in force."""
    node, rules = json.loads(line)
    if rules or "kraftpy.testing.misbehaviour" in sys.modules:
        from kraftpy.testing.misbehaviour import obey
        from kraftpy.testing.rules import Rule

        obey(node, [Rule(**rule) for rule in rules])


if __name__ == "__main__":
    main()
