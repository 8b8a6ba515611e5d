"""The wire protocol: primitives, message declarations, frames and record batches. No I/O; no import from above."""
