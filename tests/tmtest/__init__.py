"""What the tests share: services found on this machine, a test app, and real processes to start and kill."""
