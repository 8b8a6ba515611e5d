"""Leaders that break one rule, to prove that the simulation's oracle sees it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from kraftpy.protocol.errors import ErrorCode
from kraftpy.replication.events import HighWatermarkAdvanced, LeaderEffect
from kraftpy.replication.leader import Leader, _Follower
from kraftpy.types import BrokerId, Millis


@cache
def leader_class(rules: frozenset[str]) -> type[Leader]:
    """A leader that keeps these rules only."""

    class Ablated(Leader):
        @property
        def is_under_min_insync_replicas(self) -> bool:
            return super().is_under_min_insync_replicas

        def _advance_high_watermark(self, now: int) -> Sequence[LeaderEffect]:
            if "acks of the isr" not in rules:
                if self.is_under_min_insync_replicas:
                    return ()
                ends = sorted([self.log_end_offset, *(f.log_end_offset for f in self._followers.values())])
                return self._raise_to(ends[-max(1, self.effective_min_insync_replicas)])
            if "maximal isr" not in rules:
                if self.is_under_min_insync_replicas:
                    return ()
                proposed = self.state.isr if self._proposal is None else [b for b, _ in self._proposal.isr]
                members = set(self.state.isr) & set(proposed)
                ends = [f.log_end_offset for f in self._followers.values() if f.broker_id in members]
                return self._raise_to(min([self.log_end_offset, *ends]))
            if "min isr holds the high watermark" not in rules:
                min_insync_replicas, self._min_insync_replicas = self._min_insync_replicas, 1
                try:
                    return super()._advance_high_watermark(now)
                finally:
                    self._min_insync_replicas = min_insync_replicas
            return super()._advance_high_watermark(now)

        def _raise_to(self, offset: int) -> Sequence[LeaderEffect]:
            if offset <= self.high_watermark:
                return ()
            self.high_watermark = offset
            return (HighWatermarkAdvanced(offset=offset),)

        def _is_eligible(self, follower: _Follower) -> bool:
            if "broker epochs" not in rules:
                return follower.broker_epoch is not None
            return super()._is_eligible(follower)

        def check_follower(self, broker_id: BrokerId, broker_epoch: int) -> _Follower:
            return super().check_follower(broker_id, broker_epoch if "broker epochs" in rules else -1)

        def _may_join_isr(self, follower: _Follower) -> bool:
            if "epoch start" not in rules:
                return follower.log_end_offset >= self.high_watermark and self._is_eligible(follower)
            return super()._may_join_isr(follower)

        def proposal_refused(
            self, error: ErrorCode, now: Millis, *, partition_epoch: int | None = None
        ) -> Sequence[LeaderEffect]:
            if "doubt" not in rules and self._proposal is not None:
                self._has_open_attempt = False
            return super().proposal_refused(error, now, partition_epoch=partition_epoch)

    return Ablated
