"""What each API asks of an authorizer, and the guards that ask before a handler is called.

`policy` is the table: which operation on which resource each API needs, and how a refusal is told. The guards carry it
out: they take out of a request what is refused, let the handler answer the rest, and put both together. Where rights
change while a request waits, or decide more than an answer (Fetch, ShareFetch, Metadata), the handler itself asks.
"""
