"""What trajectories meet: tasks, environments and rewards, their lengths, waits and mishaps.

Invariant: what is drawn follows from names and the seed; only queues know who came first.
"""
