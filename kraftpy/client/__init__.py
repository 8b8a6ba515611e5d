"""The asyncio client: producer, consumer, admin, and a small blocking facade. Works against any Kafka broker."""
