"""For users: an embedded broker, and files in memory for tests of what keeps files."""
