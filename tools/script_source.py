"""Shared code of the checks in tools/: finds the comments of Python, shell, CMake and Make files."""
import contextlib
import functools
import io
import re
import tokenize

HASH_FILES = re.compile(r"(?:^|/)(?:CMakeLists\.txt|Makefile|[^/]+\.(?:sh|cmake|cmake\.in))$")
# A comment begins at the start of a line or behind a blank, and outside of quotes.
QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'[^']*'"
HASH_COMMENT = re.compile(rf"^(?:[^\"'#\\]|\\.|{QUOTED}|(?<=\S)#)*?(?:^|(?<=\s))#(?P<comment>.*)$")


def language(path, text):
    """Returns "python" or "hash" for a file whose comments this module finds, and otherwise ""."""
    first = text[:80].split("\n")[0]
    if path.endswith(".py") or re.match(r"#!.*\bpython3?\b", first):
        return "python"
    return "hash" if HASH_FILES.search(path) or re.match(r"#!.*\b(?:ba)?sh\b", first) else ""


def _python_comments(text):
    """Yields (line, column, comment) for each line of a comment or of a string that is a statement."""
    begins = True  # whether the next token begins a statement
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield token.start[0], token.start[1] + 1, token.string[1:]
        elif token.type == tokenize.STRING and begins:
            for n, line in enumerate(token.string.split("\n")):
                yield token.start[0] + n, 0 if n else token.start[1], line
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            begins = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


@functools.cache
def comments(path, text):
    """Returns [(line, column, comment)] of a script, by line.

    The hash is not part of a comment. The strings that document a Python file, class or function are
    comments. If a Python file has an error of syntax, the comments behind the error are missing.
    """
    found = []
    if language(path, text) == "python":
        with contextlib.suppress(tokenize.TokenError, SyntaxError):
            for comment in _python_comments(text):
                found.append(comment)
        return found
    for number, line in enumerate(text.split("\n"), 1):
        m = HASH_COMMENT.match(line)
        if m and not (number == 1 and line.startswith("#!")):
            found.append((number, m.start("comment"), m["comment"]))
    return found


def without_comments(path, text):
    """Returns the text of a script with spaces in place of its comments."""
    lines = text.split("\n")
    for line, column, comment in comments(path, text):
        lines[line - 1] = lines[line - 1][:column] + " " * len(comment) + lines[line - 1][column + len(comment):]
    return "\n".join(lines)
