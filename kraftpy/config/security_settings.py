"""The table of security settings of listeners that this broker acts on, in the form of `broker_settings`.

Each can be set for one listener, `listener.name.<listener>.<setting>`, and some SASL settings for one of its
mechanisms, `listener.name.<listener>.<mechanism>.<setting>`. `security` resolves them. The table is loaded only if a
listener is not PLAINTEXT, or if one of these names is used.
"""

from __future__ import annotations

from kraftpy.config.settings import Setting, parse_table

SECURITY_TABLE = """
# TLS of a listener, and of connections to other brokers on it
ssl.allow.dn.changes                             boolean  false
    Let a renewed certificate carry another distinguished name.
ssl.allow.san.changes                            boolean  false
    Let a renewed certificate drop alternative names.
ssl.cipher.suites                                list     ""
    Cipher suites allowed.
ssl.client.auth                                  string   "none" {required,requested,none}
    Whether clients must show a certificate.
ssl.enabled.protocols                            list     TLSv1.2,TLSv1.3
    TLS versions allowed.
ssl.endpoint.identification.algorithm            string   https
    How the name in a server's certificate is checked.
ssl.key.password                                 password null
    Password of the private key.
ssl.keystore.certificate.chain                   password null
    Certificate chain, in PEM.
ssl.keystore.key                                 password null
    Private key, in PEM.
ssl.keystore.location                            string   null
    File with the private key and its certificate.
ssl.keystore.password                            password null
    Password of that file.
ssl.keystore.type                                string   JKS
    Format of that file.
ssl.principal.mapping.rules                      string   DEFAULT
    Rules that shorten a certificate's subject to a user name.
ssl.truststore.certificates                      password null
    Trusted certificates, in PEM.
ssl.truststore.location                          string   null
    File with the trusted certificates.
ssl.truststore.password                          password null
    Password of that file.
ssl.truststore.type                              string   JKS
    Format of that file.

# SASL of a listener
connection.failed.authentication.delay.ms        int      100 0..
    Wait before a connection that failed to authenticate is closed.
connections.max.reauth.ms                        long     0
    Longest time before a client must authenticate again.
sasl.enabled.mechanisms                          list     GSSAPI
    SASL mechanisms clients may use.
sasl.jaas.config                                 password null
    Login settings of a SASL mechanism.
sasl.kerberos.principal.to.local.rules           list     DEFAULT
    Rules that shorten a Kerberos principal to a user name.
sasl.kerberos.service.name                       string   null
    Kerberos principal the brokers run as.
sasl.mechanism.controller.protocol               string   GSSAPI
    SASL mechanism with which nodes log in to controllers.
sasl.mechanism.inter.broker.protocol             string   GSSAPI
    SASL mechanism between brokers.
sasl.server.callback.handler.class               class    null
    Class that checks clients' credentials.
sasl.server.max.receive.size                     int      524288
    Largest SASL message before a client is authenticated.

# Tokens of OAUTHBEARER
kraftpy.sasl.oauthbearer.allow.unsecured.tokens  boolean  none->false
    Accept unsigned tokens, which anyone can forge, and no others; only for testing clients.
org.apache.kafka.sasl.oauthbearer.allowed.files  list     none->""
    Paths of the files that sasl.oauthbearer settings, and their URLs, may name.
org.apache.kafka.sasl.oauthbearer.allowed.urls   list     none->""
    URLs that sasl.oauthbearer.jwks.endpoint.url and .token.endpoint.url may have.
sasl.oauthbearer.assertion.algorithm             string   RS256 ~{ES256,RS256}
    Algorithm that signs a token assertion.
sasl.oauthbearer.assertion.claim.aud             string   null
    Audience claim of a token assertion.
sasl.oauthbearer.assertion.claim.exp.seconds     int      300 0..86400
    Lifetime of a token assertion.
sasl.oauthbearer.assertion.claim.iss             string   null
    Issuer claim of a token assertion.
sasl.oauthbearer.assertion.claim.jti.include     boolean  false
    Give each token assertion its own id.
sasl.oauthbearer.assertion.claim.nbf.seconds     int      60 0..3600
    How far back a token assertion is valid.
sasl.oauthbearer.assertion.claim.sub             string   null
    Subject claim of a token assertion.
sasl.oauthbearer.assertion.file                  string   null
    File with a ready token assertion.
sasl.oauthbearer.assertion.private.key.file      string   null
    File with the key that signs token assertions.
sasl.oauthbearer.assertion.private.key.passphrase password null
    Passphrase of that key.
sasl.oauthbearer.assertion.template.file         string   null
    File with header and claims of token assertions.
sasl.oauthbearer.client.credentials.client.id    string   null
    Client id for the client-credentials grant.
sasl.oauthbearer.client.credentials.client.secret password null
    Client secret for the client-credentials grant.
sasl.oauthbearer.clock.skew.seconds              int      30 0..3600
    Difference between clocks that is tolerated when a token is checked.
sasl.oauthbearer.expected.audience               list     ""
    Audiences, one of which a token must have.
sasl.oauthbearer.expected.issuer                 string   null
    Issuer that a token must have.
sasl.oauthbearer.jwks.endpoint.refresh.ms        long     3600000 1000..
    Interval at which the keys for verifying tokens are fetched.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long     10000 1..
    Longest wait before a failed fetch is tried again.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms  long     100 1..
    First wait before a failed fetch is tried again.
sasl.oauthbearer.jwks.endpoint.url               string   null
    URL (https, http or file) of the keys for verifying tokens.
sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
    Class that obtains tokens.
sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
    Class that checks tokens.
sasl.oauthbearer.scope                           string   null
    Scope asked for with a token.
sasl.oauthbearer.scope.claim.name                string   scope
    Claim of a token that holds its scope.
sasl.oauthbearer.sub.claim.name                  string   sub
    Claim of a token that holds the user's name.
sasl.oauthbearer.token.endpoint.url              string   null
    URL of the endpoint that issues tokens.
"""

SECURITY_SETTINGS: dict[str, Setting] = parse_table(SECURITY_TABLE)
