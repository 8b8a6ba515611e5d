"""Loads and compiles, once, all that simulations need. The process from which they are forked imports this module.

A short run imports the handlers that nodes load when they are first needed, and compiles the codecs of their messages.
The objects that exist then are set aside (`gc.freeze`), so that a simulation's collections look only at its own.
"""

from __future__ import annotations

import gc

from chaos import seeds, simulation

__all__ = ["seeds"]

_SEED, _MINUTES = 1, 0.02

simulation.run(_SEED, _MINUTES)
gc.collect()
gc.freeze()
