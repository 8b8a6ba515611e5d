"""CRC-32C (Castagnoli), in hardware where there is an instruction for it: the function of the package crc32c.

Only the package's extension module is loaded. The package itself asks `importlib.metadata` for its version, which loads
the standard library's e-mail parser, and that is a fifteenth of the time in which a node starts.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any, Protocol

from kraftpy.ports import Buffer

__all__ = ["crc32c"]


class _Checksum(Protocol):
    def __call__(self, data: Buffer, value: int = 0) -> int: ...


def _loaded() -> _Checksum:
    """Return the extension module's function; the package's own, if the package is laid out in another way."""
    function: Any = None
    package = find_spec("crc32c")
    spec = package and PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        function = getattr(module, "crc32c", None)
    if function is None:
        import crc32c as whole

        function = whole.crc32c
    checksum: _Checksum = function
    return checksum


crc32c = _loaded()
