"""Changes of topics: create, alter settings, add partitions, delete."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from kraftpy.client.model import NewTopic, ResourceType
from kraftpy.console.console import after_change, console_of
from kraftpy.console.forms import Refused, needs_typed, number_of, read_form, settings_of, text_of
from kraftpy.console.pages.setting_changes import alter_setting
from kraftpy.protocol.errors import KafkaError


async def new(request: Request) -> Response:
    """Show the form of a new topic."""
    return _form(request, {}, None)


async def create(request: Request) -> Response:
    """Create a topic; show the form again with the reason if it cannot be."""
    fields = await read_form(request)
    try:
        name = text_of(fields, "name").strip()
        wanted = NewTopic(
            name=name,
            num_partitions=number_of(fields, "partitions", -1, low=1, high=2**31 - 1),
            replication_factor=number_of(fields, "replicas", -1, low=1, high=2**15 - 1),
            config=settings_of(fields.get("settings", "")),
        )
        await console_of(request).cluster.admin.create_topics([wanted])
    except (KafkaError, Refused) as error:
        return _form(request, fields, str(error))
    return after_change("/topic", "created", name=name)


def _form(request: Request, fields: Mapping[str, str], error: str | None) -> Response:
    return console_of(request).render(
        request,
        "topic_new.html",
        status=200 if error is None else 400,
        title="Create a topic",
        fields={name: fields.get(name, "") for name in ("name", "partitions", "replicas", "settings")},
        error=error,
    )


async def alter(request: Request) -> Response:
    """Set one setting of a topic, or restore its default."""
    fields = await read_form(request)
    name = text_of(fields, "name")
    await alter_setting(request, fields, ResourceType.TOPIC, name)
    return after_change("/topic", "altered", name=name)


async def add_partitions(request: Request) -> Response:
    """Raise a topic's number of partitions."""
    fields = await read_form(request)
    name = text_of(fields, "name")
    total = number_of(fields, "total", None, low=1, high=2**31 - 1)
    await console_of(request).cluster.admin.create_partitions({name: total})
    return after_change("/topic", "partitions", name=name)


async def delete(request: Request) -> Response:
    """Delete a topic whose name was typed."""
    fields = await read_form(request)
    name = text_of(fields, "name")
    needs_typed(fields, name)
    await console_of(request).cluster.admin.delete_topics([name])
    return after_change("/topics", "deleted")
