"""The worker's side: the gate before the body, the lease while it runs, the record when it has ended."""
