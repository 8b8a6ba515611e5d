"""The settings of the transaction coordinator, under Kafka's names (dots and underscores exchanged).

Left out: `transaction.state.log.*` (the shell creates the partition), `transaction.two.phase.commit.enable` (KIP-939).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """What a `TransactionCoordinator` may decide by. Kafka's defaults."""

    transaction_max_timeout_ms: int = 900_000
    """A producer that asks for a longer timeout is refused."""
    transactional_id_expiration_ms: int = 604_800_000
    """How long an id that nobody uses is remembered."""
    kraftpy_transaction_coordinator_max_bytes: int = 134_217_728
    """Memory that all coordinators of a broker may use for transactional ids; new ones beyond it are refused."""
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    """How often transactions that are open for too long are looked for."""
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    """How often ids that nobody uses are looked for."""
