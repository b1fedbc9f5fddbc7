"""The `rollart` command."""
