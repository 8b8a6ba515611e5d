"""The admin client: topics, settings, groups, transactions, users, ACLs, tokens, quotas and the cluster.

Each module asks about one subject. They share how a request finds the right broker, plain functions that turn arguments
into messages, and the data classes of the answers.
"""
