"""Propositional formulas as truth tables, without recursion.

ReasoningGYM's parser recurses as deep as the answer nests, and its evaluator tries 2**n assignments for any n names in
the answer. Here a formula is read once from left to right, and a truth table is one integer.
"""

from __future__ import annotations

from collections.abc import Sequence

_PRECEDENCE = {"↔": 1, "→": 2, "∨": 3, "∧": 4, "¬": 5}  # noqa: RUF001 -- logic's own symbol


def truth_table(formula: str, variables: Sequence[str]) -> tuple[int, bool]:
    """The truth table of a formula over single-letter variables, and whether it has an operator; else a ValueError.

    Bit i is the formula's value under assignment i. Binary operators of equal precedence group to the left, as in
    ReasoningGYM.
    """
    rows = 1 << len(variables)
    everything = (1 << rows) - 1
    tables = {name: _column(position, rows) for position, name in enumerate(variables)}
    operands: list[int] = []
    operators: list[str] = []
    expects_operand = True
    compound = False
    for symbol in formula:
        if symbol.isspace():
            continue
        if expects_operand != (symbol in tables or symbol in "¬("):
            raise ValueError("operators and operands don't alternate")
        if symbol in tables:
            operands.append(tables[symbol])
            expects_operand = False
        elif symbol in "¬(":
            operators.append(symbol)
        elif symbol == ")":
            while operators and operators[-1] != "(":
                _apply(operators.pop(), operands, everything)
            if not operators:
                raise ValueError("unbalanced parentheses")
            operators.pop()
        elif symbol in _PRECEDENCE:
            while operators and operators[-1] != "(" and _PRECEDENCE[operators[-1]] >= _PRECEDENCE[symbol]:
                _apply(operators.pop(), operands, everything)
            operators.append(symbol)
            expects_operand = True
        else:
            raise ValueError("unknown symbol")
        compound = compound or symbol in _PRECEDENCE
    if expects_operand:
        raise ValueError("the formula is incomplete")
    while operators:
        _apply(operators.pop(), operands, everything)
    return operands.pop(), compound


def _column(position: int, rows: int) -> int:
    return sum(1 << row for row in range(rows) if row >> position & 1)


def _apply(operator: str, operands: list[int], everything: int) -> None:
    if operator == "(":
        raise ValueError("unbalanced parentheses")
    right = operands.pop()
    if operator == "¬":
        operands.append(everything & ~right)
        return
    left = operands.pop()
    if operator == "∧":
        operands.append(left & right)
    elif operator == "∨":  # noqa: RUF001
        operands.append(left | right)
    elif operator == "→":
        operands.append((everything & ~left) | right)
    else:
        operands.append(everything & ~(left ^ right))
