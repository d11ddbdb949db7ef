"""Shared code of the checks in tools/: the names of strategy statistics in C++ code and in the manual.

A part of a name that is known only when the program runs is a *: the name of `requests_<shard>` is
requests_*.
"""
import re

from cpp_source import code_only, only

# Functions that return strategy statistics or add some to their argument.
FUNCTION = re.compile(r"\b(?:(?:StrategyStats|std::map<std::string, double>)\s+(?:\w+::)*\w+\((?:[^;{}()]|\([^;{}()]*\))*\)"
                      r"|(?:\w+::)*\w+\([^;{}()]*\bStrategyStats& \w+[^;{}()]*\))[\w\s]*(?=\{)")
LAMBDA = re.compile(r"\bauto (?P<name>\w+) = \[[^\]]*\]\([^()]*?\b(?P<parameter>\w+)(?:,[^()]*)?\)\s*(?=\{)")
PART = r"(?:\"[^\"]*\"|fmt::format\(\"[^\"]*\"[^()]*\)|\w+)"
# stats["name"], stats["begin_" + end] and the first part of {"name", value}
KEY = re.compile(rf"(?:\[(?P<index>{PART}(?:\s*\+\s*{PART})*)\]|\{{\s*(?P<first>{PART}(?:\s*\+\s*{PART})*)\s*,)")
# What the trainer adds to the statistics of a strategy.
ADDED = re.compile(r"\bstrategy(?:\[| = \{\{)\"(?P<name>\w+)\"")
HEADING = "### Strategy statistics"


def _end(code, opening):
    """Returns the index behind the brace that closes the one at `opening`."""
    depth = 0
    for m in re.compile(r"[{}]").finditer(code, opening):
        depth += 1 if m[0] == "{" else -1
        if depth == 0:
            return m.end()
    return len(code)


def _name(expression, values):
    """Returns the name that a key has, or None if no string is a part of it. values: those of variables."""
    name, known = "", False
    for part in re.findall(PART, expression):
        literal = re.search(r"\"([^\"]*)\"", part)
        known |= bool(literal) or part in values
        name += re.sub(r"\{[^}]*\}", "*", literal[1]) if literal else values.get(part, "*")
    return name if known else None


def names_in_code(text):
    """Yields (position, name) of each strategy statistic that C++ code reports."""
    if not re.search(r"StrategyStats|std::map<std::string, double>|\bstrategy\b", text):
        return
    source, code = only(text, "code", "literal"), code_only(text)
    for function in FUNCTION.finditer(code):
        begin, end = function.end(), _end(code, function.end())
        calls = []  # (begin, end, parameter, argument) of each call of a lambda with a string
        for m in LAMBDA.finditer(code, begin, end):
            body_end = _end(code, m.end())
            for call in re.finditer(rf"\b{m['name']}\(\"(\w+)\"", source[begin:end]):
                calls.append((m.end(), body_end, m["parameter"], call[1]))
        for m in KEY.finditer(source, begin, end):
            inside = [{parameter: argument} for first, last, parameter, argument in calls if first <= m.start() < last]
            for values in inside or [{}]:
                name = _name(m["index"] or m["first"], values)
                if name:
                    yield m.start(), name
    for m in ADDED.finditer(source):
        yield m.start(), m["name"]


def names_in_page(text):
    """Yields (line, name, name as the page has it) of the table of strategy statistics."""
    lines, inside = text.split("\n"), False
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            inside = line.strip() == HEADING
        elif inside and line.startswith("|"):
            for span in re.findall(r"`([^`]+)`", line.split("|")[1]):
                yield number, re.sub(r"<\w+>", "*", span), span
