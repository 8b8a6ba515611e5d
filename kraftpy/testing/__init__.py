"""For users: an embedded broker, a pytest plugin, and files in memory."""
