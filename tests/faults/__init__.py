"""Faults: a load of every kind of job on real processes, while everything they depend on is broken, and its records.

`python -m faults.run` does it (`make chaos`); what was promised is held against the records by `faults.checker`.
"""
