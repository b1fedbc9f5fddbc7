"""Weight stores: where the trainer leaves a version and engines find it."""
