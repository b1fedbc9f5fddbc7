"""The control plane: one thread, one event loop, no clock but the loop's, no thread, no tensor.

Invariant: it depends on `rollart.core` alone and tells the world by events, so the same objects
run on one machine, on a cluster and under virtual time.
"""
