"""Who is at the other end of a connection: TLS. The mechanisms and decisions are in `kraftpy.security`."""
