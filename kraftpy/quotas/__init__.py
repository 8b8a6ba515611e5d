"""Client quotas: which limit applies to a client, and how long a client above its limit has to wait.

`entities` defines and checks quota entities and keys, `limits` finds the limit of a client, `rates` measures rates over
a window, `buckets` counts tokens, and `connections` limits new connections. Everything here is pure: the time is an
argument, in milliseconds.

Read: KIP-13, KIP-124, KIP-219 (waiting), KIP-546 (the APIs), KIP-599 (tokens), KIP-612 (connections).
"""
