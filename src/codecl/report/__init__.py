"""Tables (and later figures) from run folders."""
