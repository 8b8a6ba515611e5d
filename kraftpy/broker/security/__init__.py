"""TLS, SASL, authorization and the audit log of one broker, around `kraftpy.security`.

`listeners` puts the layers in front of connections: `tls` (certificates: `certificate`) and `authentication` (keys of
OAUTHBEARER: `jwks`; GSSAPI: `kerberos`; delegation tokens: `token_logins`). `authorizer` decides which requests are
allowed, and `audit` writes the audit log. The mechanisms and rules are in `kraftpy.security`.
"""
