"""An asyncio client for any Kafka broker, with a small blocking facade.

    async with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
        delivery = await producer.send("greetings", b"hello", key=b"world")
        print(await delivery)

    async with Consumer("greetings", group_id="readers", auto_offset_reset="earliest") as consumer:
        async for record in consumer:
            print(record.value)

Names are imported when first used (PEP 562): a program that only produces does not load the consumer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kraftpy.client.admin.acls import AclBinding as AclBinding
    from kraftpy.client.admin.acls import AclFilter as AclFilter
    from kraftpy.client.admin.acls import AclOperation as AclOperation
    from kraftpy.client.admin.acls import AclPattern as AclPattern
    from kraftpy.client.admin.acls import AclPermission as AclPermission
    from kraftpy.client.admin.acls import AclResource as AclResource
    from kraftpy.client.admin.admin import Admin as Admin
    from kraftpy.client.admin.model import FeatureUpgrade as FeatureUpgrade
    from kraftpy.client.admin.model import QuorumEndpoint as QuorumEndpoint
    from kraftpy.client.blocking.facade import BlockingAdmin as BlockingAdmin
    from kraftpy.client.blocking.facade import BlockingConsumer as BlockingConsumer
    from kraftpy.client.blocking.facade import BlockingProducer as BlockingProducer
    from kraftpy.client.blocking.share import BlockingShareConsumer as BlockingShareConsumer
    from kraftpy.client.connection import BrokerUnreachable as BrokerUnreachable
    from kraftpy.client.connection import UnsupportedVersion as UnsupportedVersion
    from kraftpy.client.consumer.consumer import Consumer as Consumer
    from kraftpy.client.consumer.consumer import RebalanceListener as RebalanceListener
    from kraftpy.client.interceptors import ConsumerInterceptor as ConsumerInterceptor
    from kraftpy.client.interceptors import ProducerInterceptor as ProducerInterceptor
    from kraftpy.client.metrics import MetricName as MetricName
    from kraftpy.client.model import AcknowledgeType as AcknowledgeType
    from kraftpy.client.model import AlterOperation as AlterOperation
    from kraftpy.client.model import ConsumerGroupMetadata as ConsumerGroupMetadata
    from kraftpy.client.model import ConsumerRecord as ConsumerRecord
    from kraftpy.client.model import IsolationLevel as IsolationLevel
    from kraftpy.client.model import NewTopic as NewTopic
    from kraftpy.client.model import OffsetAndMetadata as OffsetAndMetadata
    from kraftpy.client.model import OffsetAndTimestamp as OffsetAndTimestamp
    from kraftpy.client.model import OffsetSpec as OffsetSpec
    from kraftpy.client.model import ProducerRecord as ProducerRecord
    from kraftpy.client.model import RecordMetadata as RecordMetadata
    from kraftpy.client.model import ResourceType as ResourceType
    from kraftpy.client.model import ShareRecord as ShareRecord
    from kraftpy.client.model import TimestampType as TimestampType
    from kraftpy.client.model import TopicInfo as TopicInfo
    from kraftpy.client.producer.delivery import Delivery as Delivery
    from kraftpy.client.producer.producer import BufferFull as BufferFull
    from kraftpy.client.producer.producer import Producer as Producer
    from kraftpy.client.producer.transaction_events import ApplicationRecoverable as ApplicationRecoverable
    from kraftpy.client.producer.transaction_events import ProducerFenced as ProducerFenced
    from kraftpy.client.producer.transaction_events import TransactionAbortable as TransactionAbortable
    from kraftpy.client.producer.transaction_events import TransactionAborted as TransactionAborted
    from kraftpy.client.producer.transaction_events import TransactionError as TransactionError
    from kraftpy.client.producer.transaction_events import TransactionFatal as TransactionFatal
    from kraftpy.client.ranges.reader import OffsetOutOfRange as OffsetOutOfRange
    from kraftpy.client.ranges.reader import RangeReader as RangeReader
    from kraftpy.client.ranges.reader import UnknownTopic as UnknownTopic
    from kraftpy.client.share.consumer import ShareConsumer as ShareConsumer
    from kraftpy.protocol.errors import ErrorCode as ErrorCode
    from kraftpy.protocol.errors import KafkaError as KafkaError
    from kraftpy.types import TopicPartition as TopicPartition

_ACLS = "kraftpy.client.admin.acls"
_MODEL = "kraftpy.client.model"
_TRANSACTIONS = "kraftpy.client.producer.transaction_events"
_MODULES = {
    "AcknowledgeType": _MODEL,
    "AclBinding": _ACLS,
    "AclFilter": _ACLS,
    "AclOperation": _ACLS,
    "AclPattern": _ACLS,
    "AclPermission": _ACLS,
    "AclResource": _ACLS,
    "Admin": "kraftpy.client.admin.admin",
    "AlterOperation": _MODEL,
    "ApplicationRecoverable": _TRANSACTIONS,
    "BlockingAdmin": "kraftpy.client.blocking.facade",
    "BlockingConsumer": "kraftpy.client.blocking.facade",
    "BlockingProducer": "kraftpy.client.blocking.facade",
    "BlockingShareConsumer": "kraftpy.client.blocking.share",
    "BrokerUnreachable": "kraftpy.client.connection",
    "BufferFull": "kraftpy.client.producer.producer",
    "Consumer": "kraftpy.client.consumer.consumer",
    "ConsumerGroupMetadata": _MODEL,
    "ConsumerInterceptor": "kraftpy.client.interceptors",
    "ConsumerRecord": _MODEL,
    "Delivery": "kraftpy.client.producer.delivery",
    "ErrorCode": "kraftpy.protocol.errors",
    "FeatureUpgrade": "kraftpy.client.admin.model",
    "IsolationLevel": _MODEL,
    "KafkaError": "kraftpy.protocol.errors",
    "MetricName": "kraftpy.client.metrics",
    "NewTopic": _MODEL,
    "OffsetAndMetadata": _MODEL,
    "OffsetAndTimestamp": _MODEL,
    "OffsetOutOfRange": "kraftpy.client.ranges.reader",
    "OffsetSpec": _MODEL,
    "Producer": "kraftpy.client.producer.producer",
    "ProducerFenced": _TRANSACTIONS,
    "ProducerInterceptor": "kraftpy.client.interceptors",
    "ProducerRecord": _MODEL,
    "QuorumEndpoint": "kraftpy.client.admin.model",
    "RangeReader": "kraftpy.client.ranges.reader",
    "RebalanceListener": "kraftpy.client.consumer.consumer",
    "RecordMetadata": _MODEL,
    "ResourceType": _MODEL,
    "ShareConsumer": "kraftpy.client.share.consumer",
    "ShareRecord": _MODEL,
    "TimestampType": _MODEL,
    "TopicInfo": _MODEL,
    "TopicPartition": "kraftpy.types",
    "TransactionAbortable": _TRANSACTIONS,
    "TransactionAborted": _TRANSACTIONS,
    "TransactionError": _TRANSACTIONS,
    "TransactionFatal": _TRANSACTIONS,
    "UnknownTopic": "kraftpy.client.ranges.reader",
    "UnsupportedVersion": "kraftpy.client.connection",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return __all__
