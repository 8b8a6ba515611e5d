"""Opens the listener for monitors, if the settings ask for one. Imports nothing of it otherwise."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kraftpy.broker.startup import StartupError, reason
from kraftpy.config.metrics import METRICS, USERS, is_https, parse_metrics_listener

if TYPE_CHECKING:
    from kraftpy.broker.metrics.node import Node

logger = logging.getLogger(__name__)


async def open_monitoring(node: Node) -> None:
    """Serve metrics and health from now on. Raises StartupError if that is not possible."""
    text = node.config.kraftpy_metrics_listener
    if text is None:
        return
    try:
        from kraftpy.broker.metrics.login import UsersError
        from kraftpy.broker.metrics.pages import Monitoring
        from kraftpy.tls import TlsError
    except ImportError as error:
        problem = f"{METRICS} needs the extra metrics (pip install 'kraftpy[metrics]'): {error}"
        raise StartupError(problem) from error
    address = parse_metrics_listener(text)
    try:
        monitoring = await asyncio.to_thread(Monitoring, node)
    except TlsError as error:
        raise StartupError(f"{METRICS}: {error}") from None
    except UsersError as error:
        raise StartupError(f"{USERS}: {error}") from None
    except OSError as error:
        raise StartupError(f"{METRICS}: {reason(error)}") from error
    try:
        await monitoring.start(address.host, address.port)
    except OSError as error:
        monitoring.close()
        raise StartupError(f"{METRICS}: cannot listen on {address}: {reason(error)}") from error
    node.metrics.monitor = monitoring
    scheme = "https" if is_https(text) else "http"
    logger.info("metrics are at %s://%s/metrics", scheme, address._replace(port=monitoring.port))
