"""What this host can do: the probes, and what follows from them for each command."""
