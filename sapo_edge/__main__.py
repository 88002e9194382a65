"""`python -m sapo_edge` is `sapo`."""

from sapo_edge.cli.main import main

main()
