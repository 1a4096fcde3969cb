"""Data sets: those inside the package, and those in the data folder: fetched, added, checked, read."""
