"""What Redis tells of the whole fleet, as figures with their causes: HTTP, Prometheus, progress.json in the store."""
