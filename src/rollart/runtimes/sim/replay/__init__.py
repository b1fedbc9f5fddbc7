"""Replay: the real control plane runs a recorded schedule again, over parts that play the record.

`run.replay_events` is the way in. The record says when and how the world outside control answered;
control decides everything else anew, and what it then says must equal what it said.
"""
