"""The local runtime: one machine, every busy part in a child process of its own."""
