"""Figures for Prometheus: what happens is counted where it happens, how things stand is asked of the database.

Beat and workers serve theirs where `tm_metrics_port` says so, Flower adds how things stand to its own `/metrics`. Everything
that is counted comes from an event, so nothing here touches the work itself; without the setting nothing here is loaded.
Names and labels are data in `names`. No label is an argument, a key or an entity.
"""
