"""One line of `sapo doctor`: what was looked at, how it is, what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Result of a check."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's report; `remedy` is empty for what passes."""

    name: str
    status: Status
    detail: str
    remedy: str = ""
