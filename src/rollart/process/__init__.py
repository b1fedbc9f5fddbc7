"""Killable children: spawn, fork, talk to, watch and end processes.

The owner (one asyncio loop, no threads) starts a child with `spawn.spawn` or
`forkserver.ForkServer.fork` and holds a `child.Child`; the child runs an entry function with a
`serve.ChildPort`. Between them go msgpack messages over a socket pair, nothing that can be
executed. No child outlives its owner. This package imports nothing by itself, because every child
loads it: import from its modules.
"""
