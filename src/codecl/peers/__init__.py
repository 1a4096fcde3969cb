"""Agents as peers: one process each, linked to its neighbours and to nobody else."""
