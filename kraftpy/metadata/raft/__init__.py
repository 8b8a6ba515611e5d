"""Raft by the sections of the paper, around a library that has the rules of roles, votes and commit.

    node       `Raft`: one server of the cluster; passes each input to the part that has the rule for it
    state      the paper's state (its Figure 2), and what all parts share: peers, clock, outbox
    election   §5.2, and of Ongaro's dissertation pre-vote (§9.6) and leader stickiness (§4.2.3)
    follower   §5.3, the receiver of AppendEntries; §7, the receiver of InstallSnapshot
    leader     §5.3, the sender of both; commit (§5.4); leadership transfer (dissertation, §3.10)
    membership §6, one voter at a time (dissertation, §4.1)
    snapshots  §7: when to take a snapshot, and the snapshot that followers are sent
    progress   the progress of each follower, and the limits on what is in flight to it
    log        the log: the library's interface over our journal
    library    pysyncobj: the one module that knows its names

`kraftpy.metadata.quorum` is what the broker uses. "The paper" is Ongaro and Ousterhout's "In Search of an
Understandable Consensus Algorithm" (2014).
"""
