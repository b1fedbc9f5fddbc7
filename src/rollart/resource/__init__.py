"""The resource plane: pools of slots, hardware classes, and who is bound where and why.

Invariant: pure matching. Nothing here starts a process or waits; whoever launches workers asks for
bindings first.
"""
