"""The rules, as plain values: no database, no broker, no clock. Time is always an argument."""
