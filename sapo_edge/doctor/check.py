"""The result of one check of `sapo doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report; `remedy` is empty if there is nothing to do."""

    name: str
    status: Status
    detail: str
    remedy: str = ""
