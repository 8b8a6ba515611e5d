"""Consumer groups and committed offsets, as a state machine without I/O."""
