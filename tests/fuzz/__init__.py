"""Bad input of every kind: messages, schedules, files, commands, requests and arguments that nobody should give."""
