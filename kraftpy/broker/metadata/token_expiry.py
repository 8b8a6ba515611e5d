"""Removes expired delegation tokens while this node is the active controller (KIP-48)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.config import BrokerConfig
from kraftpy.metadata.delegation_tokens import RemoveDelegationTokens
from kraftpy.ports import Clock
from kraftpy.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

_MOST_AT_ONCE: Final = 1_000


async def remove_expired_tokens(config: BrokerConfig, clock: Clock, metadata: MetadataLog) -> None:
    """Look for expired tokens every `delegation.token.expiry.check.interval.ms`, and remove up to 1,000 at a time."""
    while True:
        await asyncio.sleep(config.delegation_token_expiry_check_interval_ms / 1000)
        while metadata.is_leader:
            now_ms = clock.now()
            token_ids = metadata.image.delegation_tokens.expired(now_ms, _MOST_AT_ONCE)
            if not token_ids:
                break
            try:
                await metadata.submit(RemoveDelegationTokens(token_ids=token_ids, time_ms=now_ms))
            except KafkaError as error:
                logger.warning("expired delegation tokens were not removed: %s", error)
                break
            logger.info("%d delegation tokens have expired", len(token_ids))
