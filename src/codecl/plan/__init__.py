"""What a run will be, before anything trains."""
