"""What runs, on a page of this host: the flows of a log that is being written, as they are and as they were."""
