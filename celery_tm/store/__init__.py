"""All SQL: the tables, the ways of each database, and the statements that move work.

Every function takes an open `Transaction` and leaves commit and rollback to whoever opened it.
"""
