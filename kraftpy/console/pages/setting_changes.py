"""The change of one setting of a topic, group or broker, by its page's form."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request

from kraftpy.client.model import ResourceType
from kraftpy.console.console import console_of
from kraftpy.console.forms import text_of


async def alter_setting(request: Request, fields: Mapping[str, str], kind: ResourceType, name: str) -> None:
    """Set the setting that the form names, or restore its default. Raises Refused and KafkaError."""
    setting = text_of(fields, "setting").strip()
    value = None if fields.get("restore") else fields.get("value", "")
    await console_of(request).cluster.admin.alter_configs({(kind, name): {setting: value}})
