"""A node as a service of the operating system: its unit or property list, and what it reports."""
