"""How peers find and reach each other."""
