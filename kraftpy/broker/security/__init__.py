"""The identity of the other end of a connection, by TLS and SASL. The mechanisms and rules are in `kraftpy.security`."""
