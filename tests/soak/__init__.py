"""Hours of low load, watched for what grows: `make soak HOURS=4`."""
