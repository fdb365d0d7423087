"""What happened: invocations and returns in virtual time."""
