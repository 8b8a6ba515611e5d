"""A connection of the broker's without a socket, for tests of what looks at one.

Compiled modules accept no stand-ins for objects of compiled classes.
"""

from __future__ import annotations

import asyncio

from kraftpy.broker.connection import Connection
from kraftpy.broker.containment import Complaints, Incidents, Tasks
from kraftpy.broker.request_memory import RequestMemory
from kraftpy.broker.response_writer import Response
from kraftpy.security.principal import ANONYMOUS, Principal


async def _no_answer(frame: bytearray, connection: Connection) -> Response | None:
    raise NotImplementedError


def lone_connection(principal: Principal = ANONYMOUS) -> Connection:
    """Return a connection over which this identity was proved."""
    complaints = Complaints()
    incidents = Incidents(complaints)
    connection = Connection(
        _no_answer,
        tasks=Tasks(asyncio.TaskGroup(), incidents),
        memory=RequestMemory(),
        complaints=complaints,
        incidents=incidents,
        max_frame_bytes=1 << 20,
        receive_buffer=memoryview(bytearray(1)),
        opened=lambda connection: True,
        closed=lambda connection: None,
    )
    connection.authenticated(principal)
    return connection
