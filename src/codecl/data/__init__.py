"""Data sets: those inside the package."""
