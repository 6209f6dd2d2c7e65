"""What Redis tells of runs and workers, for those who watch: the same figures for `status`, the aggregator and its page."""
