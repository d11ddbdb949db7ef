"""Divides source files into groups that can be compiled as one file.

  tools/source_groups.py SIZE FILE…

Files of a group declare different names in their unnamed namespaces. Prints the files of a group in a line,
with | between them. A group has at most SIZE files.
"""
import pathlib
import re
import sys

UNNAMED = re.compile(r"^namespace \{\n(.*?)^\}  // namespace$", re.MULTILINE | re.DOTALL)
# The names of types, functions and variables that begin in the first column.
DECLARED = re.compile(r"^(?=\S)(?:template <.*>\s*)?(?:(?:struct|class|enum class|enum|union) (\w+)\b(?!.*;$)|using (\w+) ="
                      r"|(?!return|using|namespace|#|//)[\w:<>,&*\[\] ]*?[\s&*](\w+)(?=\(|\{| =|\[|;))", re.MULTILINE)


def unnamed_names(text):
    """Returns the names that a source declares in its unnamed namespaces."""
    return {word for part in UNNAMED.findall(text) for words in DECLARED.findall(part) for word in words if word}


def without_clashes(files, size, read):
    """Divides files into lists of at most `size` files that declare different names. read(file) returns its text."""
    groups = []  # pairs (files, names that they declare)
    for name in files:
        declared = unnamed_names(read(name))
        group, taken = next((g for g in groups if len(g[0]) < size and not g[1] & declared), ([], set()))
        if not group:
            groups.append((group, taken))
        group.append(name)
        taken |= declared
    return [group for group, _ in groups]


if __name__ == "__main__":
    for lines in without_clashes(sys.argv[2:], int(sys.argv[1]), lambda f: pathlib.Path(f).read_text(encoding="utf-8")):
        print("|".join(lines))
