"""Shared code of the checks in tools/: lists the repository's files, divides C++ into comments and code."""
import pathlib
import subprocess


def tracked(root, *suffixes):
    """Returns the files of the work tree at `root` that end in one of `suffixes`, sorted.

    These are the tracked files and the new files that git does not ignore.
    """
    out = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=root, check=True,
                         capture_output=True, text=True).stdout
    paths = sorted(set(p for p in out.split("\0") if p.endswith(suffixes)))
    return [p for p in paths if (pathlib.Path(root) / p).is_file()]


def _raw_string_end(text, start):
    """Returns the index behind the raw string literal whose opening quote is at `start`."""
    paren = text.index("(", start)
    close = ")" + text[start + 1:paren] + '"'
    end = text.find(close, paren)
    return len(text) if end < 0 else end + len(close)


def _literal_end(text, start):
    """Returns the index behind the string or character literal that opens at `start`."""
    i = start + 1
    while i < len(text) and text[i] != text[start] and text[i] != "\n":
        i += 2 if text[i] == "\\" else 1
    return min(i + 1, len(text))


def _blank(piece, fill=" "):
    return "".join(c if c == "\n" else fill for c in piece)


def pieces(text):
    """Yields (kind, start, end) of each piece of `text`, in order.

    The kind is "comment", "literal" or "code".
    """
    i, code = 0, 0
    while i < len(text):
        two, c = text[i:i + 2], text[i]
        if two == "//":
            end = text.find("\n", i)
            kind, end = "comment", len(text) if end < 0 else end
        elif two == "/*":
            end = text.find("*/", i + 2)
            kind, end = "comment", len(text) if end < 0 else end + 2
        elif c == '"' or (c == "'" and not (i and (text[i - 1].isdigit() or text[i - 1] in "abcdefABCDEF")
                                            and text[i + 1:i + 2].isalnum() and text[i + 2:i + 3] != "'")):
            raw = c == '"' and i and text[i - 1] == "R"
            kind, end = "literal", _raw_string_end(text, i) if raw else _literal_end(text, i)
        else:
            i += 1
            continue
        if code < i:
            yield "code", code, i
        yield kind, i, end
        i = code = end
    if code < len(text):
        yield "code", code, len(text)


def code_only(text):
    """Returns `text` with spaces in place of comments and of the inside of literals. Every newline stays."""
    out = []
    for kind, start, end in pieces(text):
        piece = text[start:end]
        out.append(piece if kind == "code" else _blank(piece) if kind == "comment" else piece[0] + _blank(piece[1:-1]) + piece[0])
    return "".join(out)


def only(text, *kinds):
    """Returns `text` with spaces in place of every piece that is not of one of `kinds`.

    Every newline stays.
    """
    return "".join(text[start:end] if kind in kinds else _blank(text[start:end]) for kind, start, end in pieces(text))
