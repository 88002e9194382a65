"""The home's router: asked to forward a port to this node, in a process of its own."""
