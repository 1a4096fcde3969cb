"""A run from its config to its folder: built, recorded, resumed, read."""
