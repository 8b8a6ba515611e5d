"""An admin client that sends each request once: the effect of a request whose answer was lost is unknown."""

from __future__ import annotations

from typing import Final

from chaos.workloads.clients import Setting
from kraftpy.client import Admin

_TIMEOUT_MS: Final = 3_000


class SingleRequests:
    """Opens an admin client at its first use, and again after it was closed."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._admin: Admin | None = None

    async def admin(self, process: int) -> Admin:
        """Return the client, named after a process of the history if it is opened now."""
        if self._admin is None:
            self._admin = Admin(
                bootstrap_servers=self._setting.bootstrap_servers,
                client_id=f"process-{process}",
                runtime=self._setting.runtime,
                request_timeout_ms=_TIMEOUT_MS,
                default_api_timeout_ms=_TIMEOUT_MS,
                retry_backoff_ms=2 * _TIMEOUT_MS,  # too late: nothing is ever requested twice
                retry_backoff_max_ms=2 * _TIMEOUT_MS,
            )
            await self._admin.start()
        return self._admin

    async def close(self) -> None:
        """Close the client, if it is open."""
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()
