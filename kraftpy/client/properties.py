"""Client options from a properties file such as `client.properties`, which Kafka's tools take with `--command-config`.

The settings have Kafka's names. Settings that our clients do not have are returned rather than refused, because such a
file is often shared with other programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from kraftpy.client.options import ClientOptions

_PEM_ONLY = ("ssl.keystore.type", "ssl.truststore.type")
_NOT_FOR_PEM = ("ssl.keystore.password", "ssl.truststore.password")
_KINDS = {each.name: str(each.type) for each in fields(ClientOptions) if "Callable" not in str(each.type)}


def options_of(settings: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return keyword arguments for any client, and the names of settings that have no effect. Raises ValueError."""
    options: dict[str, Any] = {}
    ignored = []
    for name, text in settings.items():
        option = name.replace(".", "_")
        if name in _PEM_ONLY:
            if text.upper() != "PEM":
                raise ValueError(f"{name}={text} is not supported: only PEM is")
        elif name in _NOT_FOR_PEM:
            raise ValueError(f"{name}: a PEM store has no password; the key's password is ssl.key.password")
        elif option in _KINDS:
            options[option] = _parsed(name, text, _KINDS[option])
        else:
            ignored.append(name)
    if "ssl.keystore.location" in settings and "ssl.keystore.type" not in settings:
        raise ValueError("ssl.keystore.location is set without ssl.keystore.type=PEM")
    if "ssl.truststore.location" in settings and "ssl.truststore.type" not in settings:
        raise ValueError("ssl.truststore.location is set without ssl.truststore.type=PEM")
    return options, ignored


def _parsed(name: str, text: str, kind: str) -> Any:
    try:
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        return int(text) if kind == "int" else float(text) if kind == "float" else text
    except (ValueError, KeyError):
        raise ValueError(f"{name} must be {'true or false' if kind == 'bool' else 'a number'}") from None
