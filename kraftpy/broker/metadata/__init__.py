"""The metadata log of one node, around `kraftpy.metadata`.

A voter or an observer keeps the log, links carry it between the nodes, and the active controller fences brokers and
moves leaders. A broker's registration and the commands of clients who change the cluster go through here.
"""
