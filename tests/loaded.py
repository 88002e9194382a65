"""Importing this loads the libraries that our code loads in ways of its own: by their names alone they may not load."""

import sapo_edge.swarm  # noqa: F401 -- lets libp2p do without libraries that it names
from sapo_edge.backends.model.llama_library import import_binding
from sapo_edge.tasks.library import make_dataset

import_binding()
# ReasoningGYM, without libraries that it names.
make_dataset("gcd", {})
