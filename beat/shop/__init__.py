"""A shop with subscriptions: what it owes later is deferred in the transaction that causes it, and done exactly once.

`checkout` sells, `billing` renews, `payments` finds out who has paid and gives them what they paid for, `upkeep` keeps
rates and tokens fresh. `provider` is the outside world: somebody else's server, which may fail or forget to call.
"""
