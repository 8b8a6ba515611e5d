"""What the broker does for each API, one module per family."""
