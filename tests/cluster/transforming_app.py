"""An application to be killed: it reads `in`, writes each value to `out`, and commits output and offsets together.

    python transforming_app.py BOOTSTRAP SEED

It prints `commit N` for each transaction of N records that it knows to be committed. After an error it restarts as
another instance of the same transactional id; if another one has fenced it, it ends. Now and then it aborts, or
leaves a transaction open and restarts.

It ends if a call far exceeds its timeout: librdkafka 2.15 waits forever in
`send_offsets_to_transaction` for a coordinator of the group that died, once the metadata no longer lists that broker.
"""

from __future__ import annotations

import contextlib
import faulthandler
import random
import sys

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

GROUP, TRANSACTIONAL_ID = "transformers", "transformer"
_AT_MOST_S = 10
_STUCK_S = 3 * _AT_MOST_S
_FENCED = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")


def main(bootstrap: str, seed: int) -> None:
    """Work until killed or fenced."""
    chance = random.Random(seed)
    while True:
        faulthandler.dump_traceback_later(_STUCK_S, exit=True)
        try:
            _one_life(bootstrap, chance)
        except KafkaException as error:
            print(f"error {error.args[0].name()}", flush=True)
            if error.args[0].name() in _FENCED:
                return


def _one_life(bootstrap: str, chance: random.Random) -> None:
    common = {"bootstrap.servers": bootstrap, "log_level": 0}
    producer = Producer({**common, "transactional.id": TRANSACTIONAL_ID, "transaction.timeout.ms": 20000})
    producer.init_transactions(_AT_MOST_S)
    consumer = Consumer(
        {
            **common,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
        }
    )
    try:
        consumer.subscribe(["in"])
        while True:
            faulthandler.dump_traceback_later(_STUCK_S, exit=True)
            taken = [each for each in consumer.consume(10, 0.2) if each.error() is None]
            if not taken:
                continue
            producer.begin_transaction()
            for message in taken:
                producer.produce("out", message.value(), partition=message.partition())
            places = [TopicPartition(each.topic(), each.partition(), each.offset() + 1) for each in _last_of(taken)]
            producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), _AT_MOST_S)
            dice = chance.random()
            if dice < 0.05:
                return  # its transaction stays open until the next instance fences it
            if dice < 0.1:
                producer.abort_transaction(_AT_MOST_S)
                return
            producer.commit_transaction(_AT_MOST_S)
            print(f"commit {len(taken)}", flush=True)
    finally:
        consumer.close()
        producer.purge()


def _last_of(taken: list[Message]) -> list[Message]:
    return list({each.partition(): each for each in taken}.values())


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main(sys.argv[1], int(sys.argv[2]))
