"""Divides source files into groups that can be compiled as one file.

  tools/source_groups.py SIZE FILE…

Files of a group declare different names in their unnamed namespaces. No file of a group uses a name that
another file declares so: it means what a header declares, and would get the other meaning. Each line of the
output has the files of a group, with | between them. A group has at most SIZE files.
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


COMMENT = re.compile(r"//.*")
# The names that may be those of functions, types and constants. Other names are mostly those of local
# variables.
USED = re.compile(r"(?<![\w.:>])(\w+(?=[(<{])|k?[A-Z]\w*)")


def without_clashes(files, size, read):
    """Divides files into lists of at most `size` files whose names do not clash.

    read(file) returns the text of a file.
    """
    groups = []  # lists of a group's files, the names that they declare, and the names that they use
    for name in files:
        text = read(name)
        declared, used = unnamed_names(text), set(USED.findall(COMMENT.sub("", text)))
        for group in groups:
            if len(group[0]) < size and not group[1] & (declared | used) and not group[2] & declared:
                break
        else:
            groups.append(group := [[], set(), set()])
        group[0].append(name)
        group[1] |= declared
        group[2] |= used
    return [group[0] for group in groups]


if __name__ == "__main__":
    for lines in without_clashes(sys.argv[2:], int(sys.argv[1]), lambda f: pathlib.Path(f).read_text(encoding="utf-8")):
        print("|".join(lines))
