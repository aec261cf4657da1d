"""The protocol of jobs as a small world, all of whose states can be visited: what it is made of, what may happen in it,
what must never, and the walk through all of it."""
