"""What works on this host: the probes, and what they mean for each command."""
