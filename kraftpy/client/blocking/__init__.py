"""The clients without asyncio.

Every blocking client runs its asyncio counterpart on an event loop in a background thread and waits for each call.
"""
