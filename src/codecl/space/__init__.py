"""The algebra: anchors, free bases and coordinates, and which weights of a module carry them."""
