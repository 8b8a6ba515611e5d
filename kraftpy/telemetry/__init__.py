"""The metrics of clients (KIP-714): subscriptions, the instances that push, and what becomes of their metrics.

- `subscriptions`: which metrics a client is asked for, and the id of that answer
- `instances`: the state of each client instance: when it may ask and push, and when it is forgotten
- `otlp`: a bounded reader of OpenTelemetry's `MetricsData`
- `store`: the last values of each client instance, for the metrics endpoint
- `forwarding`: a thread that sends what was pushed to an OTLP collector

Nothing here knows the event loop or a request; `kraftpy.broker.telemetry` does.
"""
