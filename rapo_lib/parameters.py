"""Notebook parameters, read without running anything, and the values a user gives for them.

papermill accepts misspelt names and passes `false` on as a string that is true; here both are errors or converted.
"""

import ast
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rapo_lib.runs import RapoError, read_json

SCALARS: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
GIVEN = ("run", "profile")  # every notebook declares these two; the runner fills them in


@dataclass(frozen=True, slots=True)
class Parameter:
    """One line `name: kind = default` of a notebook's parameters cell."""

    name: str
    kind: str
    default: Any


def suggestion(name: str, known: Iterable[str]) -> str:
    """The tail of an error about an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"


# ---------------------------------------------------------------------------------------------- reading


def read_parameters(notebook: Path) -> dict[str, Parameter]:
    """The declarations in the one code cell tagged `parameters`."""
    cells = [c for c in read_json(notebook).get("cells", ()) if "parameters" in c.get("metadata", {}).get("tags", ())]
    if len(cells) != 1 or cells[0]["cell_type"] != "code":
        raise RapoError(f"{notebook.name}: expected one code cell tagged 'parameters', found {len(cells)}")
    try:
        statements = ast.parse("".join(cells[0]["source"])).body
        found = [_declaration(s) for s in statements if not _is_docstring(s)]
    except (ValueError, SyntaxError) as error:
        raise RapoError(f"{notebook.name}, parameters cell: {error}") from None
    parameters = {p.name: p for p in found}
    if missing := [name for name in GIVEN if name not in parameters]:
        raise RapoError(f"{notebook.name}: the parameters cell must declare `{missing[0]}: str`")
    return parameters


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _declaration(statement: ast.stmt) -> Parameter:
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=ast.expr() as value):
            kind = ast.unparse(annotation)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            kind = ""
        case _:
            raise ValueError(f"`{ast.unparse(statement)}` is not `name: type = literal`")
    try:
        default = ast.literal_eval(value)
    except ValueError:
        raise ValueError(f"`{ast.unparse(statement)}`: only a literal can be a parameter's default") from None
    kind = kind or type(default).__name__
    return Parameter(name, kind, _checked(default, ast.parse(kind, mode="eval").body))


# ---------------------------------------------------------------------------------------------- values


def convert(value: Any, kind: str) -> Any:
    """`value` (text from the command line, or already a value) as the annotation `kind` says, else a ValueError."""
    return _convert(value, ast.parse(kind, mode="eval").body)


def _convert(value: Any, node: ast.expr) -> Any:
    if isinstance(value, str):
        value = _from_text(value, node)
    return _checked(value, node)


def _from_text(text: str, node: ast.expr) -> Any:
    """What the text spells for this annotation; text that spells nothing else stays text."""
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            readings = [_from_text(text, side) for side in (left, right)]
            return next((r for r in readings if not isinstance(r, str)), text)
        case ast.Constant(value=None):
            return None if text.lower() in ("none", "null") else text
        case ast.Name(id="bool"):
            return BOOLEANS.get(text.lower(), text)
        case ast.Name(id="int"):
            return int(text) if re.fullmatch(r"[+-]?\d+", text) else text
        case ast.Name(id="float"):
            return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text) else text
        case ast.Name(id="list" | "dict") | ast.Subscript(value=ast.Name(id="list" | "dict")):
            try:
                return json.loads(text)
            except ValueError:
                return text
    return text


def _checked(value: Any, node: ast.expr) -> Any:
    """`value` itself if it fits the annotation (an int becomes a float where one is declared)."""
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            try:
                return _checked(value, left)
            except ValueError:
                return _checked(value, right)
        case ast.Constant(value=None):
            fits = value is None
        case ast.Subscript(value=ast.Name(id="list"), slice=item):
            if isinstance(value, list | tuple):
                return [_checked(element, item) for element in value]
            fits = False
        case ast.Subscript(value=ast.Name(id="dict")):
            fits = isinstance(value, dict)
        case ast.Name(id="float"):
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                return float(value)
            fits = False
        case ast.Name(id=name) if name in SCALARS:
            fits = type(value) is SCALARS[name]
        case _:
            raise ValueError(
                f"annotation `{ast.unparse(node)}` is not one of {', '.join(SCALARS)}, list[...] or X | None"
            )
    if not fits:
        raise ValueError(f"expected {ast.unparse(node)}, found {value!r}")
    return value


def resolve(
    declared: Mapping[str, Mapping[str, Parameter]], overrides: Mapping[str, Any], run: str, profile: str
) -> dict[str, dict[str, Any]]:
    """For each notebook the full parameters: its defaults, then run and profile, then the overrides it declares."""
    known = {name for parameters in declared.values() for name in parameters} - set(GIVEN)
    for name in overrides:
        if name in GIVEN:
            raise RapoError(f"set {name!r} with --{name}, not with --set")
        if name not in known:
            raise RapoError(f"unknown parameter {name!r}: {suggestion(name, known)}")
    given = {**overrides, "run": run, "profile": profile}
    return {notebook: _resolve_one(notebook, parameters, given) for notebook, parameters in declared.items()}


def _resolve_one(notebook: str, parameters: Mapping[str, Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    values = {}
    for name, parameter in parameters.items():
        try:
            values[name] = convert(given[name], parameter.kind) if name in given else parameter.default
        except ValueError as error:
            raise RapoError(f"parameter {name!r} of {notebook}: {error}") from None
    return values
