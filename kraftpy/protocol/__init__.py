"""The wire: primitives, message declarations, frames and record batches. No I/O; imports nothing above itself."""
