"""The product, broken in known ways: what the simulation does not catch it cannot find in the real one either."""

from __future__ import annotations

from chaos.mutants import groups, hostile, metadata, producers, replication, security, sharing, storage, transactions
from chaos.mutants.mutant import Mutant

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for part in (replication, producers, storage, metadata, groups, transactions, sharing, hostile, security)
    for mutant in part.MUTANTS
}
