"""Putting back work that was left lying: jobs whose lease has ended."""
