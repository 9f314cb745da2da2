"""What this host can do: the probes, what follows from them for each command, and what killed runs left."""
