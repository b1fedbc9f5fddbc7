"""Generation engines: batches in time, and the Engine port over them.

Invariant: a batch is pure and is told the time; only `engine.py` and `life.py` have timers.
"""
