"""Transactions: which producer owns a transactional id, what its transaction wrote to, how the transaction ends."""
