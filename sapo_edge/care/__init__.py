"""How a node treats its machine: when it pauses or stops, and its priority."""
