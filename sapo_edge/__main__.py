"""`python -m sapo_edge` is `sapo`."""

from sapo_edge.cli.entry import main

main()
