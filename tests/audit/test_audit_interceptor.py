"""The counts that an interceptor publishes, and when, without a broker."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from kraftpy.audit import interceptor as module
from kraftpy.audit.counts import Tally
from kraftpy.audit.interceptor import AuditInterceptor
from kraftpy.client import KafkaError, RecordMetadata
from kraftpy.protocol.errors import ErrorCode

MINUTE = 60_000


class AuditTopic:
    """Keeps what is published, while it can be reached."""

    def __init__(self) -> None:
        self.told: list[list[tuple[int, int]]] = []
        self.is_away = False
        self.publishing = 0
        self.most_publishing = 0
        self.entered = threading.Semaphore(0)
        self.may_end = threading.Event()
        self.may_end.set()

    def publish(self, servers: str, topic: str, tallies: Iterable[Tally]) -> None:
        if self.is_away:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "away")
        self.publishing += 1
        self.most_publishing = max(self.most_publishing, self.publishing)
        self.told.append([(tally.start_ms, tally.count) for tally in tallies])
        self.entered.release()
        assert self.may_end.wait(30)
        self.publishing -= 1


@pytest.fixture
def audit_topic(monkeypatch: pytest.MonkeyPatch) -> AuditTopic:
    made = AuditTopic()
    monkeypatch.setattr(module, "publish", made.publish)
    return made


def acknowledged(at: AuditInterceptor, timestamp_ms: int) -> None:
    at.on_acknowledgement(RecordMetadata("t", 0, 0, timestamp_ms), None)


def counting() -> AuditInterceptor:
    return AuditInterceptor(bootstrap_servers="nowhere:1", tier="producer", window_ms=MINUTE)


def test_only_what_changed_is_published_again(audit_topic: AuditTopic) -> None:
    audit = counting()
    acknowledged(audit, 0)
    acknowledged(audit, MINUTE)
    audit.publish()
    acknowledged(audit, MINUTE + 1)
    audit.publish()
    audit.publish()
    assert audit_topic.told == [[(0, 1), (MINUTE, 1)], [(MINUTE, 2)]]


def test_what_could_not_be_published_is_kept_as_it_was_last(audit_topic: AuditTopic) -> None:
    audit = counting()
    audit_topic.is_away = True
    for _ in range(3):
        acknowledged(audit, 0)
        with pytest.raises(KafkaError, match="away"):
            audit.publish()
    acknowledged(audit, MINUTE)
    audit_topic.is_away = False
    audit.publish()
    assert audit_topic.told == [[(0, 3), (MINUTE, 1)]]


def test_two_that_publish_at_once_do_so_one_after_the_other(audit_topic: AuditTopic) -> None:
    audit = counting()
    acknowledged(audit, 0)
    audit_topic.may_end.clear()
    first = threading.Thread(target=audit.publish)
    first.start()
    assert audit_topic.entered.acquire(timeout=30)
    acknowledged(audit, MINUTE)
    second = threading.Thread(target=audit.publish)
    second.start()
    audit_topic.entered.acquire(timeout=0.3)  # it must not get there: this long at most to be seen doing so
    audit_topic.may_end.set()
    for thread in (first, second):
        thread.join(30)
        assert not thread.is_alive()
    assert audit_topic.most_publishing == 1
    assert audit_topic.told == [[(0, 1)], [(MINUTE, 1)]]
    audit.publish()
    assert len(audit_topic.told) == 2, "nothing was forgotten, and nothing is left"
