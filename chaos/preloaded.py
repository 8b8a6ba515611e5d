"""What every simulation needs, loaded and compiled once: imported by the process from which simulations are forked.

A short run imports the handlers that nodes load when they are first needed, and compiles the codecs of their messages.
What exists then is set aside (`gc.freeze`), so that a simulation's collections look only at its own objects.
"""

from __future__ import annotations

import gc

from chaos import seeds, simulation

__all__ = ["seeds"]

_SEED, _MINUTES = 1, 0.02

simulation.run(_SEED, _MINUTES)
gc.collect()
gc.freeze()
