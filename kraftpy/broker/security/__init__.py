"""The identity of a connection's other end, by TLS and SASL. The mechanisms and rules are in `kraftpy.security`."""
