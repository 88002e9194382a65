"""`python -m tests.soak --minutes 60`, or `--report FILE` for the tables of an earlier or unfinished run.

Needs root and iproute2 for network namespaces, and some 6 GB of memory for 12 nodes.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from tests.soak.records import read_records
from tests.soak.report import Soaked, tables
from tests.soak.soak import Options, prepared
from tests.swarm.namespaces import NotPermittedError


def main() -> int:
    """Run a soak, or report one; 1 if there is a problem."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--attackers", type=int, choices=range(4), help="default: 3, or 1 for a few nodes")
    parser.add_argument("--to", type=Path, default=None, help="directory for homes and records")
    parser.add_argument("--report", type=Path, help="records of a soak; runs nothing")
    arguments = parser.parse_args()
    directory = arguments.report
    if directory is None:
        directory = arguments.to or Path(f"soak-{time.strftime('%Y%m%d-%H%M%S')}")
        attackers = arguments.attackers if arguments.attackers is not None else 3 if arguments.nodes >= 8 else 1
        # An end that leaves no process and no namespace behind.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
        try:
            with prepared(Options(arguments.minutes, max(2, arguments.nodes), attackers, directory.absolute())) as soak:
                soak.run()
        except NotPermittedError as error:
            sys.exit(str(error))
    soaked = Soaked(read_records(directory))
    print(tables(soaked))
    return 1 if soaked.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
