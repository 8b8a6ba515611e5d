"""A distributed, replicated log that speaks Kafka's wire protocol.

The package's parts, from the bottom up: words (`types`, `ports`, `config`), the wire (`protocol`), the core
state machines without I/O (`log`, `metadata`, `groups`), the client (`client`), and the shell that
touches the world (`broker`, `spark`, `testing`). ARCHITECTURE.md draws how they fit.
"""

__version__ = "0.1.0"
