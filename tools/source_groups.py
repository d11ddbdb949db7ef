"""Divides source files into groups that can be compiled as one file.

  tools/source_groups.py SIZE FILE…

Files of a group declare different names in their unnamed namespaces, and none calls a function of such a name
that a header declares. Prints the files of a group in a line,
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


CALLED = re.compile(r"(?<![\w.:>])(\w+)(?=[(<])")


def without_clashes(files, size, read):
    """Divides files into lists of at most `size` files whose names do not clash. read(file) returns its text."""
    groups = []  # lists of a group's files, the names that they declare, and the names that they call
    for name in files:
        text = read(name)
        declared, called = unnamed_names(text), set(CALLED.findall(text))
        for group in groups:
            if len(group[0]) < size and not group[1] & (declared | called) and not group[2] & declared:
                break
        else:
            groups.append(group := [[], set(), set()])
        group[0].append(name)
        group[1] |= declared
        group[2] |= called
    return [group[0] for group in groups]


if __name__ == "__main__":
    for lines in without_clashes(sys.argv[2:], int(sys.argv[1]), lambda f: pathlib.Path(f).read_text(encoding="utf-8")):
        print("|".join(lines))
