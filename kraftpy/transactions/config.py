"""The settings of the transaction coordinator, under Kafka's names with underscores instead of dots.

Left out: `transaction.state.log.*` (the shell creates the partition), `transaction.two.phase.commit.enable` (KIP-939).
"""

from __future__ import annotations

from kraftpy.frozen import frozen


@frozen
class TransactionConfig:
    """The settings a `TransactionCoordinator` needs, with Kafka's defaults."""

    transaction_max_timeout_ms: int = 900_000
    """The longest timeout a producer may ask for; a longer one is refused."""
    transactional_id_expiration_ms: int = 604_800_000
    """How long an unused id is remembered."""
    kraftpy_transaction_coordinator_max_bytes: int = 134_217_728
    """Memory for transactional ids, shared by all coordinators of a broker; beyond it, new ids are refused."""
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    """How often the coordinator looks for transactions past their timeout."""
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    """How often the coordinator looks for unused ids."""
