"""The producer: records in, deliveries out.

Records are batched by partition, one sender task sends the batches to the leaders, and transactions are a state machine
with a manager around it that talks to the coordinators.
"""
