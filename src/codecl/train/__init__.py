"""The loop that every method and every exchange trains in, and how agents share a device."""
