"""Transactions: who writes in one, what it wrote to, how it ends."""
