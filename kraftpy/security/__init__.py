"""Identities and rights: the mechanisms and decisions of Kafka's security, without I/O.

Secrets, salts, nonces and the time are arguments; nothing here reads a file, a clock or a socket, or knows the wire
format. The broker (`kraftpy.broker`) and the client (`kraftpy.client`) carry the messages that these modules produce.
"""
