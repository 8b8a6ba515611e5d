"""The rights that each API needs, and the guards that ask for them before a handler is called.

`policy` is the table: the operation on a resource that each API needs, and how a refusal is reported. The guards carry
it out: they take refused entries out of a request, let the handler answer the rest, and put both together. If rights
can change while a request waits, or decide more than an answer (Fetch, ShareFetch, Metadata), the handler itself asks.
"""
