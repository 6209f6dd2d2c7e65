"""`producer collect`: join input and output shards of a run into the file that was wanted."""
