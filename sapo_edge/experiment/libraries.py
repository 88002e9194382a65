"""The libraries of the extra `experiment`, checked before hours of work rather than after."""

from __future__ import annotations

import importlib

from sapo_edge.errors import SapoError
from sapo_edge.installing import how_to_install_extra


def check_libraries(*, plots: bool = True) -> None:
    """Check that the libraries of a report can be loaded.

    Args:
        plots: matplotlib too.

    Raises:
        SapoError: if one is missing or can't be loaded; names the remedy.
    """
    purposes = {"scipy.stats": "the intervals", **({"matplotlib.figure": "the plots"} if plots else {})}
    for module, purpose in purposes.items():
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            name = module.partition(".")[0]
            raise SapoError(
                f"{name}, which {purpose} of an experiment need, can't be loaded ({error})",
                how_to_install_extra("experiment"),
            ) from error
