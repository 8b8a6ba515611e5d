"""Identities and rights: the mechanisms and decisions of Kafka's security, without I/O.

Secrets, salts, nonces and the time come in as values; nothing here reads a file, a clock or a socket, nor knows the
wire. The broker (`kraftpy.broker`) and the client (`kraftpy.client`) carry what these modules say.
"""
