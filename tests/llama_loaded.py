"""Importing this loads llama-cpp-python with the library that is installed for it: `import llama_cpp` may find none."""

from sapo_edge.backends.model.llama_library import import_binding

import_binding()
