"""Values of broker settings that are stored elsewhere: `${env:NAME}`, `${file:path:key}` and `${dir:path:file}`.

With these, a password appears neither in a file that everyone can read nor on a command line. They are Kafka's config
providers (KIP-297, KIP-421, KIP-887) under their usual names, and need no `config.providers` here. An unresolvable
variable is an error, and so is an unknown provider.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from kraftpy.config.settings import ConfigError

_VARIABLE = re.compile(r"\$\{([^}:]*):(?:([^}]*):)?([^}:]*)\}")

ReadFile = Callable[[str], str]
"""Returns the text of the file at a path. Raises OSError, and ConfigError if it is not text."""


def fill_in(
    name: str, text: str, environment: Mapping[str, str], read_file: ReadFile, parse: Callable[[str], Mapping[str, str]]
) -> str:
    """Return a setting's value with its variables filled in. `parse` parses a properties file.

    Raises a ConfigError that names the variable but no value.
    """
    if "${" not in text:
        return text

    def value(found: re.Match[str]) -> str:
        provider, path, key = found.group(1), found.group(2) or "", found.group(3)
        try:
            match provider:
                case "env":
                    return environment[key]
                case "file":
                    return parse(read_file(path))[key]
                case "dir":
                    return read_file(f"{path}/{key}").strip()
        except KeyError:
            raise ConfigError(f"{name}: {found.group()} is not set") from None
        except OSError as error:
            raise ConfigError(f"{name}: {found.group()} cannot be read: {error.strerror}") from None
        except ConfigError as error:
            raise ConfigError(f"{name}: {found.group()} cannot be read: {error}") from None
        raise ConfigError(f"{name}: {found.group()}: expected env, file or dir, not '{provider}'")

    return _VARIABLE.sub(value, text)
