"""Backends: a language model that samples and learns, behind `sapo_edge.policy.Policy`.

Stands at the top of the repository, installs as `sapo_edge.backends`. Importing this package loads no heavy library.
"""
