"""How functions on platforms are called: limits, tries, hedges, breakers, references, one answer.

Invariant: time is the event loop's; every call ends by its deadline with the verdict of its own
answer, or with none and the reason. Decisions are pure and apart; `caller.py` is the loop.
"""
