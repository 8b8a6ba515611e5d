"""The metadata log of one node, around `kraftpy.metadata`.

A voter or an observer keeps the log, links carry it between nodes, and the active controller fences brokers and moves
leaders. A broker's registration and clients' commands that change the cluster go through here.
"""
