"""Whether what an installation runs on fits together and has no known vulnerability: `make audit`."""
