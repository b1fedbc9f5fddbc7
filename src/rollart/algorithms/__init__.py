"""Pure functions of the learning step: advantages, losses, token log-probs and packing.

Nothing here holds state, reads a clock or knows a trainer. `advantages` and `packing` need no
torch; `losses` and `logprobs` do, so import the module you need rather than this package.
"""
