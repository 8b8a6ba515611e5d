"""CRC-32C (Castagnoli) by the package crc32c, which uses the processor's instruction if it has one.

Only the package's extension module is loaded. The package itself asks `importlib.metadata` for its version, which loads
the standard library's e-mail parser, and that takes a fifteenth of a node's start.
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
    """Return the extension module's function, or the package's own if its layout is different."""
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
