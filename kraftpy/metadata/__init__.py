"""The state that a cluster agrees on: topics, brokers, settings, rights and quotas, as a state machine without I/O."""
