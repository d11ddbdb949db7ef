"""What the checks of tools/ share: which files are ours, and a C++ file without comments and literals."""
import pathlib
import subprocess


def tracked(root, *suffixes):
    """The files of the work tree at `root` (tracked, or new and not ignored) that end in one of `suffixes`, sorted."""
    out = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=root, check=True,
                         capture_output=True, text=True).stdout
    paths = sorted(set(p for p in out.split("\0") if p.endswith(suffixes)))
    return [p for p in paths if (pathlib.Path(root) / p).is_file()]


def _raw_string_end(text, start):
    """The index behind the raw string literal whose opening quote is at `start`."""
    paren = text.index("(", start)
    close = ")" + text[start + 1:paren] + '"'
    end = text.find(close, paren)
    return len(text) if end < 0 else end + len(close)


def _literal_end(text, start):
    """The index behind the string or character literal that opens at `start`."""
    i = start + 1
    while i < len(text) and text[i] != text[start] and text[i] != "\n":
        i += 2 if text[i] == "\\" else 1
    return min(i + 1, len(text))


def _blank(piece, fill=" "):
    return "".join(c if c == "\n" else fill for c in piece)


def code_only(text):
    """`text` with comments blanked and the inside of literals replaced by spaces; every newline stays in its place."""
    out, i = [], 0
    while i < len(text):
        two, c = text[i:i + 2], text[i]
        if two == "//":
            end = text.find("\n", i)
            end = len(text) if end < 0 else end
            out.append(_blank(text[i:end]))
        elif two == "/*":
            end = text.find("*/", i + 2)
            end = len(text) if end < 0 else end + 2
            out.append(_blank(text[i:end]))
        elif c == '"' or (c == "'" and not (i and (text[i - 1].isdigit() or text[i - 1] in "abcdefABCDEF")
                                            and text[i + 1:i + 2].isalnum() and text[i + 2:i + 3] != "'")):
            raw = c == '"' and i and text[i - 1] == "R"
            end = _raw_string_end(text, i) if raw else _literal_end(text, i)
            out.append(c + _blank(text[i + 1:end - 1]) + c)
        else:
            out.append(c)
            i += 1
            continue
        i = end
    return "".join(out)
